"""Client connections: `client_connection.py` is one of them, `proxy_server.py` checks all."""
