"""Sends requests through a proxy to fill its caches, and counts the results."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from kvproxy.apis.json import JsonMap, loads
from kvproxy.apis.json import field as field_of
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.errors import KvproxyError, ProxyUnreachable
from kvproxy.offline.request_log import LineError
from kvproxy.proxy_client.api_paths import API_NAMES, PATHS, credential_headers
from kvproxy.proxy_client.client import ProxyClient, response_error
from kvproxy.proxy_client.warm_requests import WarmRequest

_ATTEMPTS = 5
_PREFIX = re.compile(r'detail="prefix (\d+)/(\d+)')


@dataclass(slots=True)
class WarmReport:
    """Results of warming a cache.

    Attributes:
        outcomes: number of responses by result: `stored`, `forwarded` (not stored), `exact`, or `semantic`.
        skipped: see `WarmSource`.
        unreadable: number of lines that should be requests, but are invalid. `errors` has them, too.
        duplicates: number of lines that were not sent, because an earlier line is equal.
        pinned: number of pinned tokens; None if no pins were requested.
        not_pinned: number of answered prompts that could not be pinned. `errors` has them, too.
        has_cache: the server is a kvproxy.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    skipped: int = 0
    unreadable: int = 0
    duplicates: int = 0
    pinned: int | None = None
    not_pinned: int = 0
    has_cache: bool = False
    errors: list[LineError] = field(default_factory=list)

    @property
    def num_cached(self) -> int:
        return self.outcomes["stored"] + self.outcomes["exact"] + self.outcomes["semantic"]

    @property
    def num_failed(self) -> int:
        return len(self.errors) - self.not_pinned

    def document(self) -> dict[str, Any]:
        pinned = {} if self.pinned is None else {"tokens_pinned": self.pinned, "not_pinned": self.not_pinned}
        return {
            "requests": sum(self.outcomes.values()) + self.num_failed - self.unreadable,
            "computed_and_stored": self.outcomes["stored"],
            "computed_not_stored": self.outcomes["forwarded"],
            "exact_hits": self.outcomes["exact"],
            "semantic_hits": self.outcomes["semantic"],
            "prompt_tokens": self.prompt_tokens,
            "reused_prompt_tokens": self.reused_tokens,
            **pinned,
            "duplicates": self.duplicates,
            "skipped": self.skipped,
            "failed": self.num_failed,
            "failures": [{"line": error.line, "message": error.message} for error in self.errors],
        }

    def add_response(self, cache_status: str, response: JsonMap) -> None:
        """Count a response by its header Cache-Status; without that header, by its `usage`."""
        # A cache behind this server writes its part first.
        status = cache_status.rsplit(", ", 1)[-1]
        self.has_cache = self.has_cache or status.startswith("kvproxy")
        if "; hit" in status:
            self.outcomes["semantic" if "semantic" in status else "exact"] += 1
            return
        self.outcomes["stored" if "stored" in status else "forwarded"] += 1
        if prefix := _PREFIX.search(status):
            reused, prompt = int(prefix[1]), int(prefix[2])
        elif reuse := reported_reuse(response):
            reused, prompt = reuse.cached_tokens, reuse.prompt_tokens
        else:
            counts = (field_of(response.get("usage"), name) for name in ("prompt_tokens", "input_tokens"))
            reused, prompt = 0, next((count for count in counts if isinstance(count, int)), 0)
        self.reused_tokens += reused
        self.prompt_tokens += prompt


@dataclass(slots=True)
class RequestPace:
    concurrency: int
    rate: float | None = None
    _next: float = 0.0

    async def wait(self) -> None:
        now = time.monotonic()
        turn = self._next = max(self._next, now)
        self._next += 1 / self.rate if self.rate else 0.0
        await asyncio.sleep(turn - now)


async def send_all(
    requests: Sequence[WarmRequest],
    url: str,
    pace: RequestPace,
    report: WarmReport,
    api_key: str | None = None,
    cache_control: str | None = None,
    headers: Mapping[str, str] = {},
    progress: Callable[[float], None] = lambda share: None,
) -> None:
    """Start the requests in order, and wait for their responses. Raises ProxyUnreachable.

    `report` is updated after each response, so it is valid even if the run is interrupted.
    """
    # A response counts as stored only when it is on disk. The journal does not count the requests as those of a client.
    control = {"cache-control": f"confirm, warming, {cache_control}" if cache_control else "confirm, warming"}
    queue = iter(enumerate(requests, 1))

    async def work(client: httpx.AsyncClient) -> None:
        for number, request in queue:
            await pace.wait()
            await _send(client, request, {**credential_headers(API_NAMES[request.path], api_key), **headers}, report)
            progress(number / len(requests))

    timeout = httpx.Timeout(600.0, connect=3.0)
    async with httpx.AsyncClient(base_url=url.rstrip("/"), headers=control, timeout=timeout) as client:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(pace.concurrency, len(requests))):
                    group.create_task(work(client))
        except* httpx.TransportError:
            raise ProxyUnreachable(
                f"{url} stopped answering: start it, then run the command again to continue"
            ) from None


def pin_all(client: ProxyClient, requests: Sequence[WarmRequest], source: str, report: WarmReport) -> int:
    """Pin the blocks of each prompt under the name `source:line`. Return the number of pinned tokens.

    Prompts that cannot be pinned are added to the report.
    """
    tokens, names = 0, set()
    for request in requests:
        if request.path == PATHS["embeddings"]:
            continue
        name, api = f"{source}:{request.line}", API_NAMES[request.path]
        try:
            tokens += client.post("/admin/blocks/pins", request.body, name=name, api=api)["tokens"]
            names.add(name)
        except KvproxyError as error:
            report.not_pinned += 1
            report.errors.append(LineError(request.line, f"not pinned: {error.message}"))
    # Prompts with a common beginning share its blocks.
    pins = client.get("/admin/blocks/pins") if names else []
    blocks = [id for pin in pins if pin["name"] in names for id in pin["blocks"]]
    return tokens * len(set(blocks)) // max(1, len(blocks))


async def _send(
    client: httpx.AsyncClient, request: WarmRequest, headers: Mapping[str, str], report: WarmReport
) -> None:
    for attempt in range(_ATTEMPTS):
        response = await client.post(request.path, json=request.body, headers=headers)
        if response.status_code not in (429, 503):
            break
        await asyncio.sleep(0.2 * 2**attempt)
    if not response.is_success:
        report.errors.append(LineError(request.line, response_error(response).message))
        return
    try:
        value = loads(response.content)
    except ValueError:
        value = None
    report.add_response(response.headers.get("cache-status", ""), value if isinstance(value, dict) else {})
