"""Encryption and redaction of stored data."""
