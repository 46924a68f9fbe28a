"""Semantic search: embed a question, find its neighbours, decide; start with semantic_cache.py."""
