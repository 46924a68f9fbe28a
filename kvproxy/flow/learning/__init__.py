"""What the cache learns from fresh answers, off the request path: read `observer.py` first."""
