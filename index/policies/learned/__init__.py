"""The policy `learned` learns from fresh answers which stored answers are right; start with learned_policy.py."""
