"""The response store in an SQLite file."""
