"""Metrics and reported prefix reuse of engines, and problems of their mirrors."""
