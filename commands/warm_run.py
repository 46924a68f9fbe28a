"""Sends requests through a proxy and keeps count of what its caches said."""

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from commands.warm_file import WarmRequest
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
        prefix = _PREFIX.search(status)
        if prefix:
            self.reused_tokens += int(prefix[1])
            self.prompt_tokens += int(prefix[2])
        if "; hit" in status:
            self.outcomes["semantic" if "semantic" in status else "exact"] += 1
        else:
            self.outcomes["stored" if "stored" in status else "forwarded"] += 1


async def run(
    requests: list[WarmRequest], url: str, concurrency: int, api_key: str | None, *, prefix_only: bool = False
) -> Report:
    """Send all requests, some at a time, with a progress bar on stderr.

    Raises:
        ProxyUnreachable: the proxy stopped answering; what was stored stays, and a second run goes on from there.
    """
    import httpx
    from rich.console import Console
    from rich.progress import Progress

    report = Report()
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    if prefix_only:
        headers["cache-control"] = "no-cache, no-store"
        requests = [replace(request, body=request.body | {"max_tokens": 1}) for request in requests]
    waiting = iter(requests)
    limits = httpx.Timeout(600.0, connect=3.0)
    with Progress(console=Console(stderr=True), disable=not Console(stderr=True).is_terminal) as progress:
        task = progress.add_task("warming", total=len(requests))

        async def work(client: httpx.AsyncClient) -> None:
            for request in waiting:
                await _send(client, request, report)
                progress.advance(task)

        async with httpx.AsyncClient(base_url=url.rstrip("/"), headers=headers, timeout=limits) as client:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(concurrency, len(requests))):
                        group.create_task(work(client))
            except* httpx.TransportError:
                raise ProxyUnreachable(
                    f"the proxy at {url} stopped answering: start it and run warm again, which goes on from here"
                ) from None
    return report


async def _send(client: Any, request: WarmRequest, report: Report) -> None:
    for attempt in range(_RETRIES):
        response = await client.post(request.path, json=request.body)
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
