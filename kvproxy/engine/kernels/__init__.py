"""Faster linear layers on a CPU. Without them, torch's layers compute the same."""
