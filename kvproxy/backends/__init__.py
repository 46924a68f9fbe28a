"""Backends compute responses; `protocol.py` is their interface."""
