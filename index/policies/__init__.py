"""Policies, which decide on semantic hits; start with policy.py, the interface."""
