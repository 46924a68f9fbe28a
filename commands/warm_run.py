"""Sends requests through a proxy and keeps count of what its caches said."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvproxy.apis.json import JsonMap, loads
from kvproxy.apis.json import field as field_of
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.commands.bodies import PATHS, credentials
from kvproxy.commands.output import progress_bar
from kvproxy.commands.warm_file import Failure, WarmRequest
from kvproxy.errors import ProxyUnreachable

if TYPE_CHECKING:
    import httpx

_RETRIES = 5
_PROMPT = ("prompt_tokens", "input_tokens")
_PREFIX = re.compile(r'detail="prefix (\d+)/(\d+)')
_APIS = {path: api for api, path in PATHS.items()}


@dataclass(slots=True)
class Report:
    """What became of a run.

    Attributes:
        outcomes: answers that were `stored`, `forwarded` (computed, not stored), `exact` or `semantic`.
        passed_over: lines of the file that hold no request.
        duplicates: lines that equal an earlier one, which is sent once.
        pinned: tokens that are pinned now; None where that was not asked for.
        has_cache: whether a kvproxy answered, rather than any other server.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    passed_over: int = 0
    duplicates: int = 0
    pinned: int | None = None
    has_cache: bool = False
    failures: list[Failure] = field(default_factory=list)

    @property
    def kept(self) -> int:
        """Requests whose answer is in the cache now."""
        return self.outcomes["stored"] + self.outcomes["exact"] + self.outcomes["semantic"]

    def facts(self) -> list[tuple[str, object]]:
        """The closing table."""
        pinned = [] if self.pinned is None else [("tokens pinned", self.pinned)]
        return [
            ("requests", sum(self.outcomes.values()) + len(self.failures)),
            ("computed and stored", self.outcomes["stored"]),
            ("computed, not stored", self.outcomes["forwarded"]),
            ("stored before", self.outcomes["exact"]),
            ("like one stored before", self.outcomes["semantic"]),
            ("prompt tokens", self.prompt_tokens),
            ("of them from blocks", self.reused_tokens),
            *pinned,
            ("duplicates", self.duplicates),
            ("lines passed over", self.passed_over),
            ("failed", len(self.failures)),
        ]

    def as_dict(self) -> dict[str, Any]:
        """The same for scripts, with the failures."""
        names = [name.replace(",", "").replace(" ", "_") for name, _ in self.facts()]
        values = [value for _, value in self.facts()]
        failures = [{"line": failure.line, "message": failure.message} for failure in self.failures]
        return dict(zip(names, values, strict=True)) | {"failures": failures}

    def count(self, status: str, answer: JsonMap) -> None:
        """Take one answer, and its Cache-Status. A server without one may tell in its answer what it reused."""
        # A cache behind this one has written its part before.
        status = status.rsplit(", ", 1)[-1]
        self.has_cache = self.has_cache or status.startswith("kvproxy")
        prefix = _PREFIX.search(status)
        if prefix:
            self.reused_tokens += int(prefix[1])
            self.prompt_tokens += int(prefix[2])
        elif "; hit" not in status:
            # In front of an upstream, the response itself reports the tokens.
            usage = answer.get("usage")
            counted = next((count for name in _PROMPT if isinstance(count := field_of(usage, name), int)), 0)
            prompt, reused = reported_reuse(answer) or (counted, 0)
            self.prompt_tokens += prompt
            self.reused_tokens += reused
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
    short = {PATHS["responses"]: "max_output_tokens"}
    return [
        replace(each, body=each.body | {short.get(each.path, "max_tokens"): 1})
        for each in requests
        if each.path != PATHS["embeddings"]
    ]


async def run(
    requests: list[WarmRequest],
    url: str,
    pace: Pace,
    api_key: str | None,
    report: Report,
    cache_control: str | None = None,
    more_headers: Mapping[str, str] = {},
) -> None:
    """Send all requests in order, with a progress bar on stderr.

    Args:
        requests: what to send.
        url: a proxy, or any other server.
        pace: how fast.
        api_key: of the tenant whose answers they are.
        report: counts what comes of it, also where the run ends early.
        cache_control: what to ask of the caches.
        more_headers: headers of every request.

    Raises:
        ProxyUnreachable: the server stopped answering; what was stored stays, and a second run goes on from there.
    """
    import httpx

    # What is counted as stored must be.
    headers = {"cache-control": f"confirm, {cache_control}" if cache_control else "confirm"}
    waiting = iter(requests)
    limits = httpx.Timeout(600.0, connect=3.0)
    with progress_bar() as progress:
        task = progress.add_task("warming", total=len(requests))

        async def work(client: httpx.AsyncClient) -> None:
            for request in waiting:
                await pace.turn()
                await _send(client, request, {**credentials(_APIS[request.path], api_key), **more_headers}, report)
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


async def _send(client: "httpx.AsyncClient", request: WarmRequest, headers: dict[str, str], report: Report) -> None:
    for attempt in range(_RETRIES):
        response = await client.post(request.path, json=request.body, headers=headers)
        if response.status_code not in (429, 503):
            break
        await asyncio.sleep(0.2 * 2**attempt)
    if response.is_success:
        report.count(response.headers.get("cache-status", ""), _object(response))
        return
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code}"
    report.failures.append(Failure(request.line, message))


def _object(response: "httpx.Response") -> JsonMap:
    """An answer as an object; an empty one where it is none."""
    try:
        value = loads(response.content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
