"""Sends requests through a proxy and keeps count of what its caches said."""

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from kvproxy.commands.warm_file import WarmRequest
from kvproxy.errors import ProxyUnreachable

_RETRIES = 5
_PREFIX = re.compile(r'detail="prefix (\d+)/(\d+)')


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that got no answer."""

    line: int
    message: str


@dataclass(slots=True)
class Report:
    """What became of a run."""

    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    failures: list[Failure] = field(default_factory=list)

    def facts(self) -> list[tuple[str, object]]:
        """The closing table."""
        return [
            ("requests", sum(self.outcomes.values()) + len(self.failures)),
            ("computed and stored", self.outcomes["stored"]),
            ("computed, not stored", self.outcomes["forwarded"]),
            ("stored before", self.outcomes["exact"]),
            ("like one stored before", self.outcomes["semantic"]),
            ("prompt tokens", self.prompt_tokens),
            ("of them from blocks", self.reused_tokens),
            ("failed", len(self.failures)),
        ]

    def as_dict(self) -> dict[str, Any]:
        names = [name.replace(",", "").replace(" ", "_") for name, _ in self.facts()]
        values = [value for _, value in self.facts()]
        failures = [{"line": failure.line, "message": failure.message} for failure in self.failures]
        return dict(zip(names, values, strict=True)) | {"failures": failures}

    def count(self, status: str) -> None:
        """Take one answer's Cache-Status."""
        # A cache behind this one has said its part before.
        status = status.rsplit(", ", 1)[-1]
        prefix = _PREFIX.search(status)
        if prefix:
            self.reused_tokens += int(prefix[1])
            self.prompt_tokens += int(prefix[2])
        if "; hit" in status:
            self.outcomes["semantic" if "semantic" in status else "exact"] += 1
        else:
            self.outcomes["stored" if "stored" in status else "forwarded"] += 1


class Pace:
    """How many requests at a time, and how many a second at most."""

    def __init__(self, concurrency: int, rate: float | None = None) -> None:
        self.concurrency = concurrency
        self._interval = 1 / rate if rate else 0.0
        self._next = 0.0

    async def turn(self) -> None:
        """Wait until the next request may be sent."""
        now = time.monotonic()
        own = self._next = max(self._next, now)
        self._next += self._interval
        await asyncio.sleep(own - now)


def prefix_only(requests: list[WarmRequest]) -> list[WarmRequest]:
    """Requests that compute their prompts and a single token."""
    short = {"/v1/responses": "max_output_tokens"}
    return [
        replace(each, body=each.body | {short.get(each.path, "max_tokens"): 1})
        for each in requests
        if each.path != "/v1/embeddings"
    ]


async def run(
    requests: list[WarmRequest], url: str, pace: Pace, api_key: str | None, cache_control: str | None = None
) -> Report:
    """Send all requests in order, with a progress bar on stderr.

    Args:
        requests: what to send.
        url: a proxy, or any other server.
        pace: how fast.
        api_key: of the tenant whose answers they are.
        cache_control: what to ask of the caches.

    Raises:
        ProxyUnreachable: the server stopped answering; what was stored stays, and a second run goes on from there.
    """
    import httpx
    from rich.console import Console
    from rich.progress import Progress

    report = Report()
    headers = {"cache-control": cache_control} if cache_control else {}
    waiting = iter(requests)
    limits = httpx.Timeout(600.0, connect=3.0)
    with Progress(console=Console(stderr=True), disable=not Console(stderr=True).is_terminal) as progress:
        task = progress.add_task("warming", total=len(requests))

        async def work(client: httpx.AsyncClient) -> None:
            for request in waiting:
                await pace.turn()
                await _send(client, request, _credentials(request.path, api_key), report)
                progress.advance(task)

        async with httpx.AsyncClient(base_url=url.rstrip("/"), headers=headers, timeout=limits) as client:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(pace.concurrency, len(requests))):
                        group.create_task(work(client))
            except* httpx.TransportError:
                raise ProxyUnreachable(
                    f"{url} stopped answering: start it and run warm again, which goes on from here"
                ) from None
    return report


def _credentials(path: str, api_key: str | None) -> dict[str, str]:
    """A key as the clients of a route send it; answers are kept apart by it."""
    if path == "/v1/messages":
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": api_key} if api_key else {})
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


async def _send(client: Any, request: WarmRequest, headers: dict[str, str], report: Report) -> None:
    for attempt in range(_RETRIES):
        response = await client.post(request.path, json=request.body, headers=headers)
        if response.status_code not in (429, 503):
            break
        await asyncio.sleep(0.2 * 2**attempt)
    if response.is_success:
        report.count(response.headers.get("cache-status", ""))
        return
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code}"
    report.failures.append(Failure(request.line, message))
