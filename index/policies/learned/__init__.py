"""The learned policy: serves answers that the traffic of a namespace has proved right; start with learned_policy.py."""
