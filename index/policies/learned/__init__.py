"""The learned policy: serves what the traffic of a namespace has shown to be right; start with policy.py."""
