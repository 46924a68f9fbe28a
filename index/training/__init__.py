"""Trains and measures the verifier in the box. Nothing that serves imports it, and the wheel leaves it out."""
