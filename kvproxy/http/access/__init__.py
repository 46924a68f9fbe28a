"""Authentication, access rules, and quotas. `admin_and_page_guard.py` and `client_guard.py` are the middleware."""
