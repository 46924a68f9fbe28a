"""Embedder, verifier, and language detection."""
