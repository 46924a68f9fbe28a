"""The OpenAPI document of the proxy, served at `/openapi.json`."""
