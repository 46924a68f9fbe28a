"""Paged attention: read `layer` first, then `backend` (the interface and the choice), then the backends themselves."""

from kvproxy.engine.attention.layer import NAME, register

__all__ = ["NAME", "register"]
