"""HTTP: `app.py` builds the app, `routes.py` has the public routes, `admin/` the routes of the operator."""
