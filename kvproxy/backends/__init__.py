"""Backends that compute responses: `protocol.py` is the interface, `embedded.py` the embedded engine."""
