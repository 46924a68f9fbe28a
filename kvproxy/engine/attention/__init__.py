"""Paged attention. Read `paged_attention` first, then `interface` and `selector`."""

from kvproxy.engine.attention.paged_attention import NAME, register

__all__ = ["NAME", "register"]
