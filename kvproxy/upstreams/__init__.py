"""Upstream servers; `fleet.py` routes the requests."""
