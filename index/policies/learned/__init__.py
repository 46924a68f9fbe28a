"""The policy `learned`, which learns from fresh responses which stored answers are right; start with learned_policy.py."""
