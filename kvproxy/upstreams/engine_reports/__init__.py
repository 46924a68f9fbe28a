"""Engines' metrics, prefix reuse, and mirror problems."""
