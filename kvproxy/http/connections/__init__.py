"""Sockets: `protocol.py` is one connection, `server.py` checks all of them, `lifetimes.py` ends requests."""
