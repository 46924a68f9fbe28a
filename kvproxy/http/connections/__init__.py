"""Sockets: `protocol.py` is one client's connection, `server.py` looks after all of them, `lifetimes.py` ends requests."""
