"""An upstream that is killed under load, and comes back: who asks what is stored gets it, however old, with its mark.

A round is a second without the upstream. `python -m tests.faults.outage --rounds 60`
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.faults.harness import Advance, Finding, Harness, Timer, main
from tests.faults.proxies import ask, proxy_process, stored
from tests.faults.upstream import answer
from tests.ports import free_port
from tests.processes import Serving, serve

_STORED = 12
"""Questions whose answers are stored before the load begins."""
_CLIENTS = 8
_AROUND = 1.0
"""Seconds of load before the upstream is killed."""
_PATIENCE = 60.0
_TTL = 0.5
_ON_THE_WAY = 0.25
"""Seconds in which an answer that the upstream gave just before it died is stored at the latest; its time begins then."""
_SETTINGS = {
    # So short that whatever is given without the upstream is past its time.
    "cache__ttl": _TTL,
    "cache__stale_if_error": 3600,
    "cache__policy": "threshold",
    "cache__min_similarity": 0.8,
    "cache__judge": "none",
    "routing__health_interval": 0.5,
}


@dataclass(slots=True)
class Outage:
    """When the upstream was away, by `time.monotonic`; 0 where that is still to come."""

    began: float = 0.0
    ended: float = 0.0
    over: bool = False


def question(number: int) -> str:
    """A question whose answer is stored."""
    return f"In which drawer of the archive is the map number {number} kept?"


def reworded(number: int) -> str:
    """The same in other words."""
    return f"In which drawer of the archive is map number {number} kept now?"


def run(rounds: int, seed: int, advance: Advance) -> Sequence[Finding]:
    """Kill the upstream for so many seconds."""
    finding = Finding("an upstream that is away under load")
    with tempfile.TemporaryDirectory() as folder, Timer(finding):
        where, port = Path(folder), free_port()
        with (
            serve(_command(port), port, where / "upstream") as upstream,
            proxy_process(upstream.url, where / "data", where / "log", **_SETTINGS) as proxy,
        ):
            for number in range(_STORED):
                assert stored(ask(proxy.url, question(number)))

            def kill() -> None:
                upstream.process.kill()
                upstream.process.wait()

            asyncio.run(
                _load(
                    proxy.url,
                    kill,
                    lambda: serve(_command(port), port, where / "again"),
                    rounds,
                    seed,
                    advance,
                    finding,
                )
            )
        if "Traceback" in (log := (where / "log").read_text()):
            finding.failures.append(f"a traceback: {log[-800:]}")
    for kind in ("exact whole", "exact stream", "semantic whole", "semantic stream"):
        if not finding.counts[f"stale {kind}"]:
            finding.failures.append(f"nobody got a stale answer: {kind}")
    return [finding]


def _command(port: int) -> list[str]:
    return [sys.executable, "-m", "tests.faults.upstream", str(port)]


async def _load(
    url: str,
    kill: Callable[[], None],
    start: Callable[[], AbstractContextManager[Serving]],
    rounds: int,
    seed: int,
    advance: Advance,
    finding: Finding,
) -> None:
    """Clients that ask all the time, while the upstream is killed and started again."""
    outage = Outage()
    clients = [asyncio.create_task(_client(url, seed * _CLIENTS + place, outage, finding)) for place in range(_CLIENTS)]
    await asyncio.sleep(_AROUND)
    outage.began = time.monotonic()
    kill()
    for _ in range(rounds):
        await asyncio.sleep(1.0)
        finding.rounds += 1
        advance()
    outage.ended = time.monotonic()
    with start():
        await _fresh(url, finding)
        outage.over = True
        await asyncio.gather(*clients)


async def _fresh(url: str, finding: Finding) -> None:
    """Wait until the upstream is asked again."""
    end = time.monotonic() + _PATIENCE
    async with httpx.AsyncClient() as client:
        while time.monotonic() < end:
            told = await client.post(f"{url}/v1/chat/completions", json=_body(question(0), stream=False))
            if "fwd=" in told.headers["cache-status"] and told.status_code == 200:
                return
            await asyncio.sleep(0.05)
    finding.failures.append("the upstream came back, and was not asked again")


async def _client(url: str, seed: int, outage: Outage, finding: Finding) -> None:
    """Somebody who asks one question after the other."""
    generator = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE) as client:
        while not outage.over:
            number, stream = generator.randrange(_STORED), generator.random() < 0.5
            kind = generator.choices(["exact", "semantic", "unknown"], [5, 4, 1])[0]
            asked = {"exact": question, "semantic": reworded}.get(kind, _unknown)(number + 1000 * (kind == "unknown"))
            began = time.monotonic()
            try:
                # What is asked in other words is not stored itself, and so has to be answered from the similar question; and what
                # nothing is stored for stays so.
                control = {} if kind == "exact" else {"cache-control": "no-store"}
                told = await client.post("/v1/chat/completions", json=_body(asked, stream=stream), headers=control)
                text = _text(told)
            except (httpx.TransportError, ValueError) as error:
                told, text = None, repr(error)
            # What was stored a moment before is within its time for a moment after.
            away = 0 < outage.began < began - _TTL - _ON_THE_WAY and not outage.ended
            cut = began <= outage.began
            form = "stream" if stream else "whole"
            _judge(
                f"{kind} {form}", told, text, answer(asked), away=away, cut=cut, gone=outage.began > 0, finding=finding
            )


def _judge(
    what: str,
    told: httpx.Response | None,
    text: str,
    right: str,
    *,
    away: bool,
    cut: bool,
    gone: bool,
    finding: Finding,
) -> None:
    """Count what a client got.

    Args:
        what: it asked.
        told: the answer; None where it broke off.
        text: what it says, or why it broke off.
        right: what it should say.
        away: it was asked and answered while the upstream was away.
        cut: it was under way when the upstream was killed.
        gone: the upstream was killed by now.
    """
    counts, failures = finding.counts, finding.failures
    if told is None and cut and what.endswith("stream"):
        # Its beginning had been sent already.
        counts["streams cut off by the kill"] += 1
    elif told is not None and told.status_code in (502, 504) and what.startswith("unknown") and gone:
        counts["refused, since nothing is stored"] += 1
    elif told is None or told.status_code != 200:
        failures.append(f"{what}: {text if told is None else (told.status_code, told.text[:200])}")
    elif text.split() != right.split():
        failures.append(f"{what}: {text!r} in place of {right!r}, {told.headers['cache-status']}")
    elif away:
        status, how = told.headers["cache-status"], what.split()[0]
        if "; hit; ttl=-" in status and f'detail="{how}' in status and "stale-if-error" in status:
            counts[f"stale {what}"] += 1
        else:
            failures.append(f"{what} without the upstream: {status}")
    else:
        counts["other answers"] += 1


def _unknown(number: int) -> str:
    """A question to which nothing is stored."""
    return f"Who wrote the {number}th book about gardens, and when did that come out?"


def _body(asked: str, *, stream: bool) -> dict[str, object]:
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": asked}]}


def _text(told: httpx.Response) -> str:
    """What an answer says; raises ValueError where a stream is not whole."""
    if told.status_code != 200:
        return ""
    if not told.headers["content-type"].startswith("text/event-stream"):
        return str(told.json()["choices"][0]["message"]["content"])
    events = [line[6:] for line in told.text.splitlines() if line.startswith("data: ")]
    if not events or events.pop() != "[DONE]":
        raise ValueError("the stream ended too early")
    return "".join(json.loads(each)["choices"][0]["delta"].get("content", "") for each in events)


HARNESS = Harness("outage", 60, run)

if __name__ == "__main__":
    main(HARNESS)
