"""Servers behind URLs, one or several: see `fleet.py` for how a request finds its engine."""
