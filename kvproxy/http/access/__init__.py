"""Authentication, access rules, and quotas. `rules.py` decides; `guard.py` and `clients.py` are the middleware."""
