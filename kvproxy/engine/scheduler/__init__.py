"""Scheduling: which tokens of which sequences a step computes."""
