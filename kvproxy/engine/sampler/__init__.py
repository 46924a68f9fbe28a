"""Sampling of the next tokens, with and without a grammar."""
