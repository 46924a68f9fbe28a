"""Our own OpenAPI document, served at `/openapi.json`: `document.py` puts it together."""
