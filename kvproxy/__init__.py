"""kvproxy: a caching reverse proxy for LLMs, with a semantic response cache and an exact prefix block cache."""

__version__ = "0.1.0"
