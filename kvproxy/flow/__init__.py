"""The path of a request through the caches: read `path.py` first."""
