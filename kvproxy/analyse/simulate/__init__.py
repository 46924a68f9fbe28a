"""Simulates traces with different pool sizes, eviction policies, and routing between engines."""
