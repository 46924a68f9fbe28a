"""Requests of clients, and requests as the HTTP layer creates them."""

from collections.abc import Mapping
from typing import Any

import httpx

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.apis.request_directives import read_directives
from kvproxy.flow.tenants import tenant_of


def chat(question: object = "hi", **fields: Any) -> dict[str, Any]:
    """Return the body of a chat with one question."""
    return {"model": "m", "messages": [{"role": "user", "content": str(question)}]} | fields


def post(
    url: str,
    question: object = "hi",
    path: str = "/v1/chat/completions",
    fields: Mapping[str, object] | None = None,
    **headers: str,
) -> httpx.Response:
    """Send a chat to a proxy; a name of a header has underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(url + path, json=chat(question, **(fields or {})), headers=named, timeout=300)


def api_request(
    body: JsonObject,
    name: ApiName = "chat",
    headers: Mapping[str, str] | None = None,
    *,
    tenant: str | None = None,
    query: str = "",
) -> ApiRequest:
    """Return a request to an API, with parsed headers."""
    given = headers or {}
    who = tenant_of(given) if tenant is None else tenant
    return ApiRequest(APIS[name], body, dumps(body), given, who, "id", query, read_directives(given))
