"""Measurements, each a ratio against a peer or a floor in the same run: `python -m tests.benchmarks.NAME`."""
