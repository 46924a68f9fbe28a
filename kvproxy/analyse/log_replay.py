"""Replays a log through the proxy's flow, with a backend that returns the logged responses."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import random
from time import time
from typing import TypeVar

from kvproxy.analyse.log_formats.log_format import LoggedRequest, SummedUsage
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.codecs.generation import Delta, Usage
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.apis.request_directives import NO_DIRECTIVES, apply_litellm_switches, read_directives
from kvproxy.backends.protocol import Forwarder, GeneratedResponse, RelayedResponse, Reply
from kvproxy.errors import InvalidDirective, KvproxyError
from kvproxy.exchange import Exchange
from kvproxy.flow.compare_responses import ResponseComparer, answer_text
from kvproxy.flow.path import RequestPath
from kvproxy.flow.prepare.rules import Rules
from kvproxy.flow.tenants import tenant_of
from kvproxy.library.configured_cache import open_response_cache
from kvproxy.settings import Settings
from kvproxy.settings.access import TENANT_HEADERS

T = TypeVar("T")
_LOOKUP_TIMEOUT = 60.0
_OUTPUT_FIELDS = frozenset({"choices", "content", "output", "data", "error"})
_NO_USAGE = Usage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """The result of replaying one request.

    Attributes:
        request: the logged request after the configured rules and edits.
        exchange: None if the request is invalid.
        is_right: whether the semantic hit means the same as the logged response; None without either of them.
    """

    logged: LoggedRequest
    request: ApiRequest
    exchange: Exchange | None
    is_right: bool | None = None

    @property
    def layer(self) -> str:
        """One of `exchange.Layer`; `bypass` for an invalid request."""
        return "bypass" if self.exchange is None else self.exchange.layer


def has_responses(requests: Sequence[LoggedRequest]) -> bool:
    return any(request.response is not None for request in requests)


def logged_tenant(logged: LoggedRequest, user_headers: Sequence[str] = TENANT_HEADERS) -> str:
    """Return the tenant that the request would have in a proxy with a client for each API key of the log."""
    return tenant_of(logged.headers, user_headers, f"client:{logged.key}" if logged.key else None)


def to_api_request(logged: LoggedRequest, settings: Settings) -> ApiRequest:
    tenant = logged_tenant(logged, settings.access.tenant_headers)
    body, control = logged.body, NO_DIRECTIVES
    # Directives that kvproxy would reject belong to another proxy.
    with contextlib.suppress(InvalidDirective):
        body, control = apply_litellm_switches(body, read_directives(logged.headers))
    id = f"line-{logged.line}"
    return ApiRequest(logged.api, body, dumps(body), logged.headers, tenant, id, control=control)


def response_text(logged: LoggedRequest) -> str | None:
    response = logged.response
    return response if isinstance(response, str) or response is None else logged.api.output_text(response)


def reported_usage(logged: LoggedRequest) -> SummedUsage:
    """Return the usage that the log states for a request."""
    if logged.usage is not None:
        return logged.usage
    response = logged.response if isinstance(logged.response, dict) else {}
    prompt, completion = logged.api.prompt_and_completion_tokens(response)
    if (reuse := reported_reuse(response)) is None:
        return SummedUsage(1, prompt, completion)
    return SummedUsage(1, reuse.prompt_tokens, completion, reuse.cached_tokens, reuse.written_5m, reuse.written_1h)


async def replay(
    requests: Sequence[LoggedRequest],
    settings: Settings,
    progress: Callable[[float], None] = lambda share: None,
    random_number: Callable[[], float] = random,
) -> list[ReplayedRequest]:
    """Replay requests in order, with an empty temporary cache and the times of the log. Raises SettingsError."""
    replayed: list[ReplayedRequest] = []
    with tempfile.TemporaryDirectory(prefix="kvproxy-") as folder:
        backend = LoggedBackend()
        caching = settings.cache.model_copy(update={"lookup_timeout": _LOOKUP_TIMEOUT})
        cache = await asyncio.to_thread(
            open_response_cache,
            Path(folder) / "responses.db",
            caching,
            embedder=settings.embedder,
            data=settings.data,
            clock=lambda: backend.now,
            random_number=random_number,
        )
        comparer = None
        if has_responses(requests) and cache.semantic is not None and caching.judge != "none":
            comparer = ResponseComparer(cache.semantic, backend, caching)
        path = RequestPath(backend, cache, caching, lambda: backend.now, comparer=comparer)
        rules = Rules(settings)
        try:
            for number, logged in enumerate(requests, 1):
                request = rules.apply_edits(rules.apply(to_api_request(logged, settings)))
                backend.set_request(logged)
                replayed.append(await _replay_request(logged, request, path))
                progress(number / len(requests))
        finally:
            await path.close()
            if comparer is not None:
                await comparer.close()
            await asyncio.to_thread(cache.close)
    return replayed


async def _replay_request(logged: LoggedRequest, request: ApiRequest, path: RequestPath) -> ReplayedRequest:
    exchange = Exchange(request.api.name, request.request_id, request.tenant, request=request)
    try:
        answer = await path.answer(exchange)
    except KvproxyError:
        return ReplayedRequest(logged, request, None)
    content = answer.body
    body = content if isinstance(content, bytes) else b"".join([chunk async for chunk in content])
    answer.close()
    await path.cache.pending_writes.wait_for_all()
    comparer, is_right = path.comparer, None
    if comparer is not None:
        # In a live proxy, requests are farther apart than a comparison takes.
        await comparer.wait_until_idle()
    expected = response_text(logged)
    served = answer_text(body, request.api.name) if exchange.layer == "semantic" else None
    if comparer is not None and expected is not None and served is not None:
        is_right = await comparer.have_same_meaning(request, "", served, expected)
    return ReplayedRequest(logged, request, exchange, is_right)


class LoggedBackend:
    """A backend that returns the logged response, or a unique text if the log has no response."""

    name = "log"
    forwarder: Forwarder | None = None

    def __init__(self) -> None:
        self.response: JsonObject | str | None = None
        self.now = time()

    def set_request(self, logged: LoggedRequest) -> None:
        if logged.time is not None:
            self.now = logged.time
        # Some logs record the usage without the output.
        is_usage = isinstance(logged.response, dict) and _OUTPUT_FIELDS.isdisjoint(logged.response)
        self.response = None if is_usage else logged.response

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def failure(self) -> str | None:
        return None

    async def models(self) -> JsonObject:
        return {"object": "list", "data": []}

    async def send(self, request: ApiRequest) -> Reply:
        response = self.response
        if request.api.name == "embeddings" and not isinstance(response, dict):
            vector: JsonObject = {"object": "embedding", "index": 0, "embedding": [0.0]}
            response = {"object": "list", "data": [vector], "model": request.model}
        if isinstance(response, dict):
            return RelayedResponse(200, [("content-type", "application/json")], _yield_once(dumps(response)))
        delta = Delta(0, response or request.request_id, (), (), "stop", _NO_USAGE)
        return GeneratedResponse(_yield_once(delta), _NO_USAGE, request.model)


async def _yield_once(item: T) -> AsyncIterator[T]:
    yield item
