"""The OpenAPI 3.1 document. A route's summary is the first line of its docstring."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.schemas import SchemaGenerator

from kvproxy import __version__
from kvproxy.apis import APIS, MESSAGES

Schema = dict[str, Any]
_JSON, _LINES, _EVENTS = "application/json", "application/jsonl", "text/event-stream"
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number", "minimum": 0}
_YES: Schema = {"type": "boolean"}
_OBJECT: Schema = {"type": "object"}


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


_BODIES: dict[str, Schema] = {
    **{api.path: _OBJECT for api in APIS.values()},
    f"{MESSAGES.path}/count_tokens": _OBJECT,
    "/admin/explain": _OBJECT,
    "/admin/blocks/pins": _OBJECT,
    "/admin/cache/{id}/feedback": _object(["right"], right=_YES, question=_TEXT),
}
"""Schemas of JSON bodies by the path of a POST route."""


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    return JSONResponse(document(request.app.routes))


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for name, api in APIS.items():
        summary = f"Answer a request to the API {name}, from the caches or the backend."
        paths[api.path] = {"post": _operation("post", api.path, summary)}
    for method, path, summary in operations(routes):
        paths.setdefault(path, {})[method] = _operation(method, path, summary)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kvproxy", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "responses": {"Error": _error_response(_ERROR), "AnthropicError": _error_response(_ANTHROPIC_ERROR)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        # A key is required only with clients or an admin token.
        "security": [{}, {"key": []}],
    }


def operations(routes: Sequence[BaseRoute]) -> list[tuple[str, str, str]]:
    """Return method, path, and summary of each route, except the cached APIs, whose routes have no docstring."""
    found = SchemaGenerator({}).get_endpoints(list(routes))
    return [(each.http_method, each.path, (inspect.getdoc(each.func) or "").partition("\n")[0]) for each in found]


def _operation(method: str, path: str, summary: str) -> dict[str, Any]:
    key = f"{method} {path}"
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in re.findall(r"{(\w+)}", path)
    ]
    for name, schema in QUERIES.get(key, {}).items():
        parameters.append({"name": name, "in": "query", "required": name == "name", "schema": schema})
    written: dict[str, Any] = {
        "summary": summary,
        "tags": ["operator" if path.startswith("/admin") or path == "/metrics" else "public"],
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": {media: {} for media in _media_types(path)}},
            "default": {
                "$ref": f"#/components/responses/{'AnthropicError' if path.startswith(MESSAGES.path) else 'Error'}"
            },
        },
    }
    if key == "post /admin/cache/import":
        written["requestBody"] = {"required": True, "content": {_LINES: {"schema": _TEXT}}}
    elif method == "post" and path in _BODIES:
        written["requestBody"] = {"required": True, "content": {_JSON: {"schema": _BODIES[path]}}}
    return written


def _error_response(schema: Schema) -> Schema:
    return {"description": "The error, and its fix.", "content": {_JSON: {"schema": schema}}}


def _media_types(path: str) -> tuple[str, ...]:
    if path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
        return _JSON, _EVENTS
    return ({"/metrics": "text/plain", "/admin/cache/export": _LINES, "/admin/log/live": _EVENTS}.get(path, _JSON),)


def _one_of(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


_PAGE = {"limit": _NUMBER, "offset": _NUMBER}
_FILTERS = dict.fromkeys(("namespace", "key", "model", "tag", "prompt", "search", "tenant", "older_than"), _TEXT)
_LOG = dict.fromkeys(("layer", "reason", "tenant", "model", "since"), _TEXT)
_LOG |= {"until": _NUMBER, "after": _NUMBER, "judged": _YES}
_NAME = {"name": _TEXT}
QUERIES: Mapping[str, Mapping[str, Schema]] = {
    "get /admin/blocks/what-if": {"tier": _TEXT, "bytes_per_token": _NUMBER},
    "get /admin/blocks/tree": {"parent": _TEXT} | _PAGE,
    "post /admin/blocks/pins": _NAME | {"ttl": _TEXT, "api": _one_of(*APIS)},
    "get /admin/cache": _PAGE | _FILTERS,
    "delete /admin/cache": {"all": _YES, "soft": _YES} | _FILTERS,
    "get /admin/cache/queue": _PAGE,
    "get /admin/cache/usage": {"by": _one_of("tenant", "model", "endpoint", "tag")},
    "delete /admin/cache/{id}": {"soft": _YES},
    "get /admin/log": _LOG | {"before": _NUMBER, "limit": _NUMBER},
    "get /admin/log/live": _LOG,
    "get /admin/log/series": {"since": _TEXT, "until": _NUMBER, "step": _TEXT, "by": _one_of("layer", "reason")},
    "get /admin/savings/ledger": {"since": _TEXT},
    "get /admin/sessions": {"since": _TEXT, "turns": _NUMBER} | _PAGE,
    "get /admin/savings": {"by": _one_of("layer", "tenant", "model", "tag", "day"), "since": _TEXT},
    "post /admin/upstreams/drain": _NAME,
    "post /admin/upstreams/undrain": _NAME,
    "post /admin/explain": {"api": _one_of(*APIS)},
}
"""Query parameters by method and path."""
QUERY_PARAMETERS = frozenset(name for query in QUERIES.values() for name in query)

_NULLABLE = {"type": ["string", "null"]}
_ERROR = _object(
    ["error"], error=_object(["message", "type"], message=_TEXT, type=_TEXT, param=_NULLABLE, code=_NULLABLE)
)
_ANTHROPIC_ERROR = _object(
    ["type", "error"], type={"const": "error"}, error=_object(["message", "type"], message=_TEXT, type=_TEXT)
)
