"""Authentication, access rules, and quotas. `guard.py` and `client_guard.py` are the middleware."""
