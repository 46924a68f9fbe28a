"""Names of the layers that answer requests."""

from typing import Literal

Layer = Literal["exact", "semantic", "forward", "bypass", "refused", "disconnected", "error", "revalidated", "plugin"]
"""Source of the response.

`exact`, `semantic`: the response cache. `forward`: the backend. `bypass`: the backend, for a request that was not parsed.
`refused`: the proxy rejected the request. `disconnected`: the client disconnected first, or its own deadline passed. `error`:
the proxy or the backend failed. `revalidated`: the backend, for a background request that renews a stale response. `plugin`:
a layer of a plugin.
"""
CACHES = ("exact", "semantic", "shared")
"""Layers of a journal record or metric whose responses required no request of the backend."""
