"""Sockets: `client_connection.py` is one connection, `proxy_server.py` checks all of them."""
