"""Copies of the block pools of external engines, rebuilt from their KV events."""
