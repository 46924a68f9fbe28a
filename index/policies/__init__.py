"""Policies decide whether a stored answer may serve a similar question; start with policy.py, the interface."""
