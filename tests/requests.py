"""Requests as the HTTP layer creates them."""

from collections.abc import Mapping

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.apis.request_directives import read_directives
from kvproxy.flow.cache_keys import tenant_of


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
