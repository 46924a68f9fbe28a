"""Requests that equal an earlier one byte for byte, answered before they are read."""
