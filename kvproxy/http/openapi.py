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
from kvproxy.apis import APIS

Schema = dict[str, Any]
_JSON, _LINES, _EVENTS = "application/json", "application/jsonl", "text/event-stream"
_TEXT: Schema = {"type": "string"}
_YES: Schema = {"type": "boolean"}
_OBJECT: Schema = {"type": "object"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}


async def openapi(request: Request) -> Response:
    """Return this document."""
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
            "responses": {"Error": {"description": "The error, and its fix.", "content": {_JSON: {"schema": _ERROR}}}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        # A key is required only with clients or an admin token.
        "security": [{}, {"key": []}],
    }


def operations(routes: Sequence[BaseRoute]) -> list[tuple[str, str, str]]:
    """Return method, path, and summary of each route except the cached APIs."""
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
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    if key == "post /admin/cache/import":
        written["requestBody"] = {"required": True, "content": {_LINES: {"schema": _TEXT}}}
    elif key in _BODIES:
        required = path != "/admin/blocks/pins"
        written["requestBody"] = {"required": required, "content": {_JSON: {"schema": _BODIES[key]}}}
    return written


def _media_types(path: str) -> tuple[str, ...]:
    if path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
        return _JSON, _EVENTS
    return ({"/metrics": "text/plain", "/admin/cache/export": _LINES, "/admin/log/live": _EVENTS}.get(path, _JSON),)


def _number(least: float | None = None, most: float | None = None, kind: str = "number") -> Schema:
    bounds = {"minimum": least, "maximum": most}
    return {"type": kind} | {name: bound for name, bound in bounds.items() if bound is not None}


def _whole(least: int | None = None, most: int | None = None) -> Schema:
    return _number(least, most, "integer")


def _one_of(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _some(schema: Schema) -> Schema:
    return {"type": "array", "items": schema, "minItems": 1}


def _record(required: list[str], **fields: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": fields}


_PAGE = {"limit": _number(0), "offset": _number(0)}
_FILTERS = dict.fromkeys(("namespace", "key", "model", "tag", "prompt", "search", "tenant", "older_than"), _TEXT)
_LOG = dict.fromkeys(("layer", "reason", "tenant", "model", "since"), _TEXT)
_LOG |= {"until": _number(0), "after": _number(0), "judged": _YES}
_NAME = {"name": _TEXT}
QUERIES: Mapping[str, Mapping[str, Schema]] = {
    "get /admin/blocks/what-if": {"tier": _TEXT, "bytes_per_token": _number(0)},
    "get /admin/blocks/tree": {"parent": _TEXT} | _PAGE,
    "post /admin/blocks/pins": _NAME | {"ttl": _TEXT, "leaf": _TEXT, "api": _one_of(*APIS)},
    "delete /admin/blocks/tiers/{name}": {"models": _one_of("own", "others", "all")},
    "get /admin/cache": _PAGE | _FILTERS,
    "delete /admin/cache": {"all": _YES, "soft": _YES} | _FILTERS,
    "get /admin/cache/queue": _PAGE,
    "get /admin/cache/usage": {"by": _one_of("tenant", "model", "endpoint", "tag")},
    "delete /admin/cache/{id}": {"soft": _YES},
    "get /admin/log": _LOG | {"before": _number(0), "limit": _number(0)},
    "get /admin/log/live": _LOG,
    "get /admin/log/series": {"since": _TEXT, "until": _number(0), "step": _TEXT, "by": _one_of("layer", "reason")},
    "get /admin/savings/ledger": {"since": _TEXT},
    "get /admin/sessions": {"since": _TEXT, "limit": _number(0), "turns": _number(0)},
    "get /admin/savings": {"by": _one_of("layer", "tenant", "model", "tag", "day"), "since": _TEXT},
    "post /admin/upstreams/drain": _NAME,
    "post /admin/upstreams/undrain": _NAME,
    "post /admin/explain": {"api": _one_of(*APIS)},
}
"""Parameters by method and path."""

_CONTENT = _either(_TEXT, _some(_record(["type", "text"], type=_one_of("text"), text=_TEXT)))
_TURN = _record(["role", "content"], role=_one_of("system", "developer", "user", "assistant"), content=_CONTENT)
_FUNCTION = _record(["name"], name=_TEXT, description=_TEXT, parameters=_OBJECT)
_SAMPLING = {
    "model": _TEXT,
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_k": _whole(0),
    "seed": _whole(),
    "stream": _YES,
    "user": _TEXT,
    "cache_salt": _TEXT,
}
_OPENAI = _SAMPLING | {
    "n": _whole(1, 128),
    "stop": _either(_TEXT, _TEXTS),
    "max_tokens": _whole(0),
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "prompt_logprobs": _whole(0, 20),
    "stream_options": _record([], include_usage=_YES),
}
_CHAT = _record(
    ["messages"],
    **_OPENAI,
    messages=_some(_TURN),
    logprobs=_YES,
    top_logprobs=_whole(0, 20),
    tools={"type": "array", "items": _record(["type", "function"], type=_one_of("function"), function=_FUNCTION)},
    tool_choice=_either(_one_of("none", "auto", "required"), _OBJECT),
    response_format=_record(["type"], type=_one_of("text", "json_object", "json_schema")),
)
_INPUT = _either(_TEXT, _some(_TEXT), _some(_whole(0)))
_BODIES: Mapping[str, Schema] = {
    "post /v1/chat/completions": _CHAT,
    "post /admin/explain": _CHAT,
    "post /admin/blocks/pins": _CHAT,
    "post /v1/completions": _record(
        ["prompt"], **_OPENAI, prompt=_INPUT, best_of=_whole(1), echo=_YES, suffix=_TEXT, logprobs=_whole(0, 20)
    ),
    "post /v1/messages": _record(
        ["messages", "max_tokens"],
        **_SAMPLING,
        messages=_some(_TURN),
        max_tokens=_whole(1),
        system=_CONTENT,
        stop_sequences=_TEXTS,
        tools={"type": "array", "items": _record(["name"], name=_TEXT, input_schema=_OBJECT)},
        thinking=_record(["type"], type=_one_of("enabled", "disabled"), budget_tokens=_whole(1)),
    ),
    "post /v1/responses": _record(
        ["input"],
        **_SAMPLING,
        input=_either(_TEXT, _some(_TURN)),
        instructions=_TEXT,
        max_output_tokens=_whole(1),
        previous_response_id=_TEXT,
        tools={"type": "array", "items": _OBJECT},
        text=_OBJECT,
        reasoning=_OBJECT,
    ),
    "post /v1/embeddings": _record(
        ["input"],
        model=_TEXT,
        input=_INPUT,
        encoding_format=_one_of("float", "base64"),
        dimensions=_whole(1),
        user=_TEXT,
    ),
    "post /admin/cache/{id}/feedback": _record(["right"], right=_YES, question=_TEXT),
}
"""Schemas of request bodies by method and path."""
_ERROR = _record(
    ["error"],
    error=_record(
        ["message", "type"],
        message=_TEXT,
        type=_TEXT,
        param={"type": ["string", "null"]},
        code={"type": ["string", "null"]},
    ),
)
