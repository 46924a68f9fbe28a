"""Measure policies on labelled pairs and recorded streams."""
