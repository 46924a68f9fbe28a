"""Simulation of traces: pool sizes, eviction policies, and routing between engines."""
