"""One request's way through the caches: read `answer.py` first."""
