"""Tiers: storage of keys and values outside the block pool, in chunks (256 tokens by default)."""
