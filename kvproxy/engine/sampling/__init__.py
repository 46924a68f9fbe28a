"""Sampling: the next token of each sequence, with and without a grammar."""
