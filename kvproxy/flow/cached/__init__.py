"""What the response cache has for a request, and what it gets of its answer: read recall.py, then keep.py."""
