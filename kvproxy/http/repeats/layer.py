"""The outermost layer: what equals a request of a moment ago is answered here, everything else goes on to the app."""

import asyncio
import contextlib
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.apis import APIS
from kvproxy.flow.cached.again import Repeater
from kvproxy.flow.outcome import Answer
from kvproxy.http.access.clients import Clients
from kvproxy.http.bodies import READ_SINCE
from kvproxy.http.connections.protocol import WHOLE
from kvproxy.http.connections.relay import encode
from kvproxy.http.labels import RequestIds, date
from kvproxy.http.metrics import Metrics
from kvproxy.http.repeats.memory import Memory, Remembered, sent_bytes
from kvproxy.rules import Rules

GIVEN = "given"
"""In a request's state: the answer, where it may be given again to the same bytes."""
_LARGEST = 64 * 1024
_DIGITS = 5
_PATHS = {api.path for api in APIS.values()}


class Repeats:
    """ASGI middleware that answers what equals a request of a moment ago. Who may ask was decided for the same headers then.

    Where there are clients it does nothing: what each of them has left must be counted.

    Args:
        repeater: gives an exact hit once more, where it still may.
        clients: of the proxy.
        rules: of the operator; what was decided by earlier ones is forgotten.
        metrics: counts the answers.
        seconds: within which a body must arrive.
    """

    def __init__(
        self, app: ASGIApp, repeater: Repeater, clients: Clients, rules: Rules, metrics: Metrics, seconds: float
    ) -> None:
        self._app = app
        self._repeater = repeater
        self._clients = clients
        self._rules = rules
        self._metrics = metrics
        self._seconds = seconds
        self._memory = Memory()
        self._ids = RequestIds()
        self._ruled = rules.generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._may_repeat(scope):
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        parts = await self._parts(scope, receive)
        receive = _after(parts, receive)
        if parts[-1].get("more_body", True):
            await self._app(scope, receive, send)
            return
        body = parts[0]["body"] if len(parts) == 1 else b"".join(part.get("body", b"") for part in parts)
        sent = sent_bytes(scope["path"], scope["query_string"], body, scope["headers"])
        known = self._memory.find(sent)
        if known is not None:
            if await self._again(known, scope, send, began):
                return
            self._memory.forget(sent)
        await self._app(scope, receive, send)
        given: Answer | None = scope["state"].get(GIVEN)
        if given is not None and given.again is not None and isinstance(given.body, bytes):
            self._memory.add(sent, Remembered(given.again, encode(given.headers), given.body))

    def _may_repeat(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["path"] not in _PATHS or not _small(scope):
            return False
        if self._ruled != self._rules.generation:
            self._ruled = self._rules.generation
            self._memory.clear()
        return scope["method"] == "POST" and not self._clients.any

    async def _parts(self, scope: Scope, receive: Receive) -> list[Message]:
        """What comes of a small body until its end, the client's, or that of the time for it."""
        state = scope.setdefault("state", {})
        if state.get(WHOLE):
            return [await receive()]
        state[READ_SINCE] = now = asyncio.get_running_loop().time()
        parts: list[Message] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(now + self._seconds):
                while not parts or parts[-1].get("more_body"):
                    parts.append(await receive())
        # Whoever reads the body next notices at once that it is late.
        return parts or [{"type": "http.request", "body": b"", "more_body": True}]

    async def _again(self, known: Remembered, scope: Scope, send: Send, began: float) -> bool:
        request_id = self._ids.of(scope)
        if not self._repeater.give(known.again, request_id):
            return False
        now = time.time()
        headers = [*known.all_headers(now), (b"x-request-id", request_id), (b"date", date(int(now)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": known.body})
        self._metrics.answered(known.again.request.api.name, "exact", 200, time.perf_counter() - began)
        return True


def _small(scope: Scope) -> bool:
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return len(length) <= _DIGITS and length.isdigit() and int(length) <= _LARGEST


def _after(parts: list[Message], receive: Receive) -> Receive:
    """Receives what was received already, then what comes."""
    waiting = parts[::-1]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again
