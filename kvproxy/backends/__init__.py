"""Backends that compute responses; `protocol.py` is the interface."""
