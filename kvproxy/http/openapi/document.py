"""Builds the OpenAPI 3.1 document from the operations and the schemas."""

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy import __version__
from kvproxy.http.openapi.bodies import BODIES, TEXT, Schema
from kvproxy.http.openapi.operations import LINES, OPERATIONS, Operation

_STREAM = "text/event-stream"


def document() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kvproxy", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": BODIES, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        # A key is required only if the proxy has clients or an admin token.
        "security": [{}, {"key": []}],
    }


def _operation(each: Operation) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", each.path)
    written = {
        "summary": each.summary,
        "tags": ["operator" if each.path.startswith("/admin") or each.path == "/metrics" else "public"],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": TEXT} for name in names),
            *(
                {"name": name, "in": "query", "required": name in each.needed, "schema": schema}
                for name, schema in each.query.items()
            ),
        ],
        "responses": {"200": {"description": "Done.", "content": _content(each)}, "default": _FAILED},
    }
    if each.body is not None or each.takes != "application/json":
        schema = TEXT if each.takes == LINES else _reference(each.body or "")
        written["requestBody"] = {
            "required": each.path != "/admin/blocks/pins",
            "content": {each.takes: {"schema": schema}},
        }
    return written


def _content(each: Operation) -> dict[str, Any]:
    return {name: {} for name in (each.gives, *([_STREAM] if each.streams else []))}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_FAILED = {
    "description": "The error, and its fix.",
    "content": {"application/json": {"schema": _reference("Error")}},
}


async def openapi(request: Request) -> Response:
    """GET /openapi.json: the document."""
    return JSONResponse(document())
