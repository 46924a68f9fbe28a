"""Semantic search: embeds a question, finds similar stored questions, and decides; start with semantic_cache.py."""
