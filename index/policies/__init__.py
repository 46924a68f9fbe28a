"""Policies for semantic hits; start with policy.py, the interface."""
