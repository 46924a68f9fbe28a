"""The OpenAPI 3.1 document. A route's summary is the first line of its docstring."""

import inspect
import re
from collections.abc import Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute, Mount
from starlette.schemas import SchemaGenerator

from kvproxy import __version__
from kvproxy.apis import APIS, MESSAGES
from kvproxy.apis.request_directives import ADMIN_TOKEN_HEADER
from kvproxy.http.admin.declared_route import DeclaredRoute
from kvproxy.http.client_authentication import DOCUMENT_PATH
from kvproxy.http.services import Services

Schema = dict[str, Any]
_JSON, _LINES, _EVENTS = "application/json", "application/jsonl", "text/event-stream"
_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}


_SECURITY_SCHEMES: dict[str, Schema] = {
    "key": {"type": "http", "scheme": "bearer", "description": "The key of a client (kvproxy keys add)."},
    "adminToken": {"type": "apiKey", "in": "header", "name": ADMIN_TOKEN_HEADER, "description": "The admin_token."},
    "adminBearer": {"type": "http", "scheme": "bearer", "description": "The admin_token."},
}
_KEY: Schema = {"key": []}
_TOKEN: list[Schema] = [{"adminToken": []}, {"adminBearer": []}]


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


_BODIES: dict[str, Schema] = {
    **{api.path: _OBJECT for api in APIS.values()},
    f"{MESSAGES.path}/count_tokens": _OBJECT,
    "/tokenize": _OBJECT,
    "/detokenize": _object(["tokens"], tokens={"type": "array", "items": {"type": "integer"}}),
}
"""Schemas of JSON bodies by the path of a POST route."""


def document_of_proxy(routes: Sequence[BaseRoute], services: Services) -> Schema:
    required = {"requires_key": services.clients.requires_key, "requires_token": services.access.requires_token}
    return document(routes, **required)


def document(routes: Sequence[BaseRoute], *, requires_key: bool = False, requires_token: bool = False) -> Schema:
    """Return the document of a proxy that requires a client's key, or the operator's token, or neither of them."""
    clients = [_KEY] if requires_key else [{}, _KEY]
    security: dict[str, list[Schema]] = {
        "public": [],
        "client": clients,
        "operator": _TOKEN if requires_token else [{}, *_TOKEN],
        "reader": [*clients, *_TOKEN],
    }
    paths: dict[str, Schema] = {}
    for name, api in APIS.items():
        summary = f"Answer a request to the API {name}, from the caches or the backend."
        paths[api.path] = {"post": {**_operation("post", api.path, summary), "security": clients}}
    declared, schemas = _declared_operations(routes)
    for method, path, summary in operations(routes):
        written = _operation(method, path, summary)
        written["security"] = security["reader" if path == DOCUMENT_PATH else written["tags"][0]]
        paths.setdefault(path, {})[method] = written
        if (declaration := declared.get((method, path))) is not None:
            written["parameters"] = declaration.get("parameters", [])
            written["responses"]["200"]["content"] = declaration["responses"]["200"].get("content", {})
            written |= {name: declaration[name] for name in ("requestBody",) if name in declaration}
            if path in _MEDIA_TYPES:
                written["responses"]["200"]["content"] = {_MEDIA_TYPES[path]: {}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "kvproxy", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {"Error": _error_response(_ERROR), "AnthropicError": _error_response(_ANTHROPIC_ERROR)},
            "securitySchemes": _SECURITY_SCHEMES,
        },
        "security": security["client"],
    }


def _declared_operations(routes: Sequence[BaseRoute]) -> tuple[dict[tuple[str, str], Schema], Schema]:
    """Return the entries of declared operations by method and path, and the schemas to which they refer."""
    entries: dict[tuple[str, str], Schema] = {}
    schemas: Schema = {}
    for mount in (route for route in routes if isinstance(route, Mount)):
        own = [route.described() for route in mount.routes or () if isinstance(route, DeclaredRoute)]
        written = get_openapi(title="", version="", routes=own)
        schemas |= written.get("components", {}).get("schemas", {})
        for path, methods in written["paths"].items():
            entries |= {(method, f"{mount.path}{path}"): entry for method, entry in methods.items()}
    return entries, schemas


def operations(routes: Sequence[BaseRoute]) -> list[tuple[str, str, str]]:
    """Return method, path, and summary of each route, except the cached APIs, whose routes have no docstring."""
    endpoints = SchemaGenerator({}).get_endpoints(list(routes))
    return [
        (endpoint.http_method, endpoint.path, (inspect.getdoc(endpoint.func) or "").partition("\n")[0])
        for endpoint in endpoints
    ]


def _operation(method: str, path: str, summary: str) -> Schema:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in re.findall(r"{(\w+)}", path)
    ]
    written: Schema = {
        "summary": summary,
        "tags": [_audience(path)],
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": {media: {} for media in _media_types(path)}},
            "default": {
                "$ref": f"#/components/responses/{'AnthropicError' if path.startswith(MESSAGES.path) else 'Error'}"
            },
        },
    }
    if method == "post" and path in _BODIES:
        written["requestBody"] = {"required": True, "content": {_JSON: {"schema": _BODIES[path]}}}
    return written


def _audience(path: str) -> str:
    if path in ("/health", "/ready"):
        return "public"
    return "operator" if path.startswith("/admin") or path == "/metrics" else "client"


def _error_response(schema: Schema) -> Schema:
    return {"description": "The error, and its fix.", "content": {_JSON: {"schema": schema}}}


_MEDIA_TYPES = {"/metrics": "text/plain", "/admin/cache/export": _LINES, "/admin/log/live": _EVENTS}


def _media_types(path: str) -> tuple[str, ...]:
    if path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
        return _JSON, _EVENTS
    return (_MEDIA_TYPES.get(path, _JSON),)


_NULLABLE = {"type": ["string", "null"]}
_ERROR = _object(
    ["error"], error=_object(["message", "type"], message=_TEXT, type=_TEXT, param=_NULLABLE, code=_NULLABLE)
)
_ANTHROPIC_ERROR = _object(
    ["type", "error"], type={"const": "error"}, error=_object(["message", "type"], message=_TEXT, type=_TEXT)
)
