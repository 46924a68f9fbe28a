"""Authentication, access rules, and quotas. `guard.py` and `clients.py` are the middleware."""
