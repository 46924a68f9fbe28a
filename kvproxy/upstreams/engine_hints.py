"""Hints of the proxy to engines, such as the session of a request, by the setting `routing.hints`."""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace

from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest, session_name
from kvproxy.apis.json import JsonObject
from kvproxy.settings.upstreams import EngineHint

MAX_RESPONSES = 100_000
"""Maximum stored responses of which the engine is remembered. The oldest are forgotten."""
SESSION_HEADER = "x-session-id"
_RESPONSE_PATH = re.compile(r"/v1/responses/([\w-]+)")
_PRIORITY_SIGNS = {"vllm": -1, "sglang": 1}


def with_hints(request: ApiRequest, hints: Collection[EngineHint]) -> ApiRequest:
    """Return the request with the chosen hints.

    `session_id` adds vLLM's header with a digest of the tenant and the session, unless the client sent one. `cache_salt` adds
    a salt per tenant, which contains the client's own salt, so that tenants share no prefix in the engine.
    """
    if "session_id" in hints and SESSION_HEADER not in request.headers and (name := session_name(request)):
        headers = {**request.headers, SESSION_HEADER: _digest(request.model, request.tenant, name)}
        request = replace(request, headers=headers)
    if "cache_salt" in hints and request.api.has_engine_fields and request.tenant != PUBLIC_TENANT:
        own = request.body.get("cache_salt")
        salt = _digest(request.tenant, own if isinstance(own, str) else "")
        request = request.with_fields({"cache_salt": salt})
    return request


def with_engine_hints(request: ApiRequest, hints: Collection[EngineHint], engine: str | None) -> ApiRequest:
    """Return the request with the hints that one kind of engine expects in its own form.

    `priority` translates the header `x-kvproxy-priority` into the body field `priority`, unless the client sent one. vLLM
    serves smaller numbers first, SGLang larger ones. `session_id` is a body field of SGLang, which ignores vLLM's header.
    `engine` is the kind of its metrics, such as "vllm"; None if it is unknown.
    """
    if not request.api.has_engine_fields:
        return request
    added: JsonObject = {}
    priority = request.control.priority
    if "priority" in hints and priority and engine in _PRIORITY_SIGNS:
        added["priority"] = _PRIORITY_SIGNS[engine] * priority
    if "session_id" in hints and engine == "sglang" and (session := request.headers.get(SESSION_HEADER)):
        added["session_id"] = session
    missing = {name: value for name, value in added.items() if request.body.get(name) is None}
    return request.with_fields(missing) if missing else request


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "replace")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


class ResponseLocations:
    """The engines that store responses for `previous_response_id`, by the responses' ids."""

    def __init__(self) -> None:
        self._urls: OrderedDict[tuple[str, str], str] = OrderedDict()

    def add(self, tenant: str, response_id: str, url: str) -> None:
        self._urls[tenant, response_id] = url
        self._urls.move_to_end((tenant, response_id))
        while len(self._urls) > MAX_RESPONSES:
            self._urls.popitem(last=False)

    def find(self, request: ApiRequest) -> str | None:
        """Return the URL of the engine that stores a request's `previous_response_id`; None if it is unknown."""
        previous = request.body.get("previous_response_id")
        return self._urls.get((request.tenant, previous)) if isinstance(previous, str) else None

    def find_path(self, tenant: str | None, path: str) -> str | None:
        """Return the URL of the engine that stores the response of a path; None if it is unknown."""
        match = _RESPONSE_PATH.match(path)
        return None if match is None or tenant is None else self._urls.get((tenant, match[1]))
