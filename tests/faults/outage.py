"""An upstream that is killed under load and restarted: a stored answer is served, however old, and marked as stale.

A round is a second without the upstream.
"""

import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.faults.harness import Advance, Finding
from tests.faults.proxies import CHAT, ask, chat, proxy_process, stored
from tests.faults.upstream import answer
from tests.polling import until_async
from tests.ports import free_port
from tests.processes import Serving, serve

_STORED = 12
"""Questions whose answers are stored before the load."""
_CLIENTS = 8
_TIMEOUT = 60.0
_TTL = 0.5
_WRITE_DELAY = 0.25
"""Maximum seconds until the last answer of the upstream is stored; its time to live begins then."""
_SETTINGS = {
    # Shorter than the outage, so that each answer without the upstream is stale.
    "cache__ttl": _TTL,
    "cache__stale_if_error": 3600,
    "cache__policy": "threshold",
    "cache__min_similarity": 0.8,
    "cache__judge": "none",
    "routing__health_interval": 0.5,
}
_PAUSE = 0.03
"""Seconds between the requests of a client, so that waiting clients do not fill a processor."""
_QUESTIONS = {
    "exact": "In which drawer of the archive is the map number {} kept?",
    "semantic": "In which drawer of the archive is map number {} kept now?",
    "unknown": "Who wrote the 1{:03}th book about gardens, and when did that come out?",
}


@dataclass(slots=True)
class Outage:
    """Times of the outage by `time.monotonic`, infinite if in the future, and the finding."""

    finding: Finding
    began: float = field(default=float("inf"))
    ended: float = field(default=float("inf"))
    is_over: bool = False


def run(rounds: int, seed: int, advance: Advance) -> Sequence[Finding]:
    """Kill the upstream for `rounds` seconds."""
    finding, port = Finding("an upstream that is away under load"), free_port()
    command = [sys.executable, "-m", "tests.faults.upstream", str(port)]
    with tempfile.TemporaryDirectory() as name, finding.timed(), finding.catch("the proxy"):
        folder = Path(name)
        with (
            serve(command, port, folder / "upstream") as upstream,
            proxy_process(upstream.url, folder / "data", folder / "log", **_SETTINGS) as proxy,
        ):
            for number in range(_STORED):
                assert stored(ask(proxy.url, _QUESTIONS["exact"].format(number)))

            def kill() -> None:
                upstream.process.kill()
                upstream.process.wait()

            def restart() -> AbstractContextManager[Serving]:
                return serve(command, port, folder / "again")

            asyncio.run(_load(proxy.url, kill, restart, rounds, seed, advance, finding))
    finding.failures += [f"no stale answer was served: {kind}" for kind in _not_served(finding)]
    return [finding]


def _not_served(finding: Finding) -> list[str]:
    kinds = ("exact whole", "exact stream", "semantic whole", "semantic stream")
    return [kind for kind in kinds if not finding.counts[f"stale {kind}"]]


async def _load(
    url: str,
    kill: Callable[[], None],
    restart: Callable[[], AbstractContextManager[Serving]],
    rounds: int,
    seed: int,
    advance: Advance,
    finding: Finding,
) -> None:
    outage = Outage(finding)
    clients = [asyncio.create_task(_client(url, seed * _CLIENTS + place, outage)) for place in range(_CLIENTS)]
    await asyncio.sleep(1.0)
    outage.began = time.monotonic()
    kill()
    for _ in range(rounds):
        await asyncio.sleep(1.0)
        finding.rounds += 1
        advance()
    # A busy machine serves few requests in the given seconds.
    with contextlib.suppress(AssertionError):
        await until_async(lambda: not _not_served(finding), _TIMEOUT)
    outage.ended = time.monotonic()
    with restart():
        await _until_used(url, finding)
        outage.is_over = True
        await asyncio.gather(*clients)


async def _until_used(url: str, finding: Finding) -> None:
    """Wait until the proxy uses the restarted upstream."""
    end = time.monotonic() + _TIMEOUT
    async with httpx.AsyncClient() as client:
        while time.monotonic() < end:
            response = await client.post(url + CHAT, json=chat(_QUESTIONS["exact"].format(0)))
            if "fwd=" in response.headers["cache-status"] and response.status_code == 200:
                return
            await asyncio.sleep(0.05)
    finding.failures.append("the upstream was restarted, but not used")


async def _client(url: str, seed: int, outage: Outage) -> None:
    """Send one question after the other."""
    generator = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT) as client:
        while not outage.is_over:
            kind = generator.choices(list(_QUESTIONS), [5, 4, 1])[0]
            question, stream = _QUESTIONS[kind].format(generator.randrange(_STORED)), generator.random() < 0.5
            # Only the original questions are stored, so that the others are never exact hits.
            headers = {} if kind == "exact" else {"cache-control": "no-store"}
            began, response = time.monotonic(), None
            try:
                response = await client.post(CHAT, json=chat(question, stream=stream), headers=headers)
                text = _text(response)
            except (httpx.TransportError, ValueError) as error:
                response, text = None, repr(error)
            _judge(f"{kind} {'stream' if stream else 'whole'}", began, response, text, answer(question), outage)
            await asyncio.sleep(_PAUSE)


def _judge(what: str, began: float, response: httpx.Response | None, text: str, right: str, outage: Outage) -> None:
    """Count a response, or record a failure; without a response, `text` is the error."""
    counts, failures = outage.finding.counts, outage.finding.failures
    now = time.monotonic()
    if response is None and began <= outage.began <= now and what.endswith("stream"):
        # The proxy had sent its beginning.
        counts["streams cut off by the kill"] += 1
    elif response is not None and response.status_code in (502, 504) and "unknown" in what and outage.began <= now:
        counts["refused, since nothing is stored"] += 1
    elif response is None or response.status_code != 200:
        failures.append(f"{what}: {text if response is None else (response.status_code, response.text[:200])}")
    elif text.split() != right.split():
        failures.append(f"{what}: {text!r} instead of {right!r}, {response.headers['cache-status']}")
    elif outage.began + _TTL + _WRITE_DELAY < began and now < outage.ended:
        status = response.headers["cache-status"]
        if "; hit; ttl=-" in status and f'detail="{what.split()[0]}' in status and "stale-if-error" in status:
            counts[f"stale {what}"] += 1
        else:
            failures.append(f"{what} without the upstream: {status}")
    else:
        counts["other answers"] += 1


def _text(response: httpx.Response) -> str:
    """Return the text of an answer; raise ValueError if a stream is incomplete."""
    if response.status_code != 200:
        return ""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return str(response.json()["choices"][0]["message"]["content"])
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    if not events or events.pop() != "[DONE]":
        raise ValueError("the stream ended too early")
    return "".join(json.loads(each)["choices"][0]["delta"].get("content", "") for each in events)
