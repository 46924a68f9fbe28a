"""Paged attention. Read `paged_attention` first, then `interface` and `selector`."""
