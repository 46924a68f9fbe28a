"""Who may do what: `rules.py` decides, `guard.py` and `clients.py` stand in front of the routes."""
