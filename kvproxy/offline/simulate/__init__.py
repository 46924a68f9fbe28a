"""Replays of traces against pools of other sizes and other eviction policies."""
