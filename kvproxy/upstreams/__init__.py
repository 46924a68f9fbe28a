"""Upstream servers, also called engines; `fleet.py` routes the requests."""
