"""Servers behind URLs: `fleet.py` routes each request to one of them."""
