"""Sockets and routes: `app.py` mounts everything, `routes.py` has the public ones, `admin/` those of the operator."""
