"""Paged attention. Read `layer` first, then `interface` and `selector`."""

from kvproxy.engine.attention.layer import NAME, register

__all__ = ["NAME", "register"]
