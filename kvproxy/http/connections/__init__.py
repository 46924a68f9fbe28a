"""Client connections: `client_connection.py` handles one connection, `proxy_server.py` all connections."""
