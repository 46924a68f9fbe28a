"""The path of a request through the caches: read `answer.py` first."""
