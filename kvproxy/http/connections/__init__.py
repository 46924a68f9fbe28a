"""Sockets: `protocol.py` is one client's connection with its limits, `server.py` looks after all of them."""
