"""Chunks between the block pool and the tiers."""
