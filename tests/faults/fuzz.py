"""Requests made from our own OpenAPI document, those that fit it and those that do not, over every route.

None gets a 500, leaves a traceback in the log, or waits for ever. `python -m tests.faults.fuzz --rounds 100000`
"""

import contextlib
import http.client
import json
import logging
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvproxy.http.openapi.document import document
from kvproxy.settings import load_settings
from tests.faults.harness import Advance, Finding, Harness, Timer, main
from tests.faults.mutants import Sent, mutant
from tests.servers import run_app, run_proxy

_PATIENCE = 60.0
_MADE = 60
"""Most requests that are made from the document for each route and mode; the others are changes of these."""
_SET_LATER = ("content-length", "user-agent", "host", "x-schemathesis-testcaseid")
_MOST_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
_MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)


class _Complaints(logging.Handler):
    """Keeps what the log says of errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextlib.contextmanager
def _listening() -> Iterator[_Complaints]:
    complaints = _Complaints()
    loggers = [logging.getLogger(name) for name in ("kvproxy", "uvicorn.error", "asyncio")]
    for each in loggers:
        each.addHandler(complaints)
    try:
        yield complaints
    finally:
        for each in loggers:
            each.removeHandler(complaints)


@contextlib.contextmanager
def _upstream() -> Iterator[str]:
    async def answer(request: Request) -> Response:
        await request.body()
        return JSONResponse(_WHOLE)

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
    with run_app(Starlette(routes=[Route("/{path:path}", answer, methods=methods)])) as url:
        yield url


def run(rounds: int, seed_: int, advance: Advance) -> list[Finding]:
    """Send so many requests, a quarter of them to the embedded engine."""
    findings = []
    made = _all_made(seed_, max(1, min(rounds // 150, _MADE)))
    with tempfile.TemporaryDirectory() as folder, _upstream() as upstream:
        common = {"cache": {"policy": "threshold"}, "limits": {"body_seconds": 10.0}}
        for name, share, own in (
            ("in front of an upstream", rounds - rounds // 4, {"upstream": upstream}),
            ("embedded engine", rounds // 4, {"engine": {"num_blocks": 256}, "tiers": {"host": 1 << 22}}),
        ):
            finding = Finding(f"fuzzed: {name}")
            with Timer(finding), run_proxy(load_settings(data=Path(folder) / name, **common, **own)) as (url, _):
                _fuzz(url, made, share, seed_, advance, finding)
            findings.append(finding)
    return findings


def _fuzz(url: str, made: list[list[Sent]], rounds: int, seed_: int, advance: Advance, finding: Finding) -> None:
    generator = random.Random(seed_)
    with _listening() as complaints, contextlib.closing(_Client(url, complaints, finding)) as client:
        for place, requests_ in enumerate(made):
            share = rounds // len(made) + (place < rounds % len(made))
            for number in range(share):
                chosen = requests_[number % len(requests_)]
                # Making a request takes far longer than answering it, so each is also sent with changes.
                client.send(chosen if number < len(requests_) else mutant(chosen, generator))
                advance()


def _all_made(seed_: int, most: int) -> list[list[Sent]]:
    """Requests for each route."""
    operations = [found.ok() for found in schemathesis.openapi.from_dict(document()).get_all_operations()]
    made = ([sent for mode in _MODES for sent in _made(operation, mode, seed_, most)] for operation in operations)
    return [each for each in made if each]


def _made(operation: schemathesis.APIOperation, mode: schemathesis.GenerationMode, seed_: int, most: int) -> list[Sent]:
    """Requests for one route that fit the document, or do not; none where a route takes nothing that could not fit."""
    made: list[Sent] = []

    @seed(seed_)
    @settings(
        max_examples=most,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def make(case: Case) -> None:
        if isinstance(case.body, dict):
            _bound(case.body)
        # Not every text can stand in a URL or a header.
        with contextlib.suppress(ValueError, UnicodeError):
            made.append(_prepared(case))

    with contextlib.suppress(Unsatisfiable, schemathesis.errors.SchemathesisError):
        make()
    return made


def _prepared(case: Case) -> Sent:
    ready = requests.Request(**case.as_transport_kwargs(base_url="http://proxy")).prepare()
    body = ready.body.encode() if isinstance(ready.body, str) else ready.body
    headers = {name.lower(): str(value) for name, value in ready.headers.items()}
    del_ = ("content-length", "user-agent", "host")
    return Sent(str(ready.method), ready.path_url, tuple(each for each in headers.items() if each[0] not in del_), body)


_ENDLESS = "/admin/log/live"
"""What becomes of requests, as it happens: it ends when the client leaves."""


class _Client:
    """Sends requests over one connection, and looks at what comes back."""

    def __init__(self, url: str, complaints: _Complaints, finding: Finding) -> None:
        self._parts = urlsplit(url)
        self._complaints = complaints
        self._finding = finding
        self._connection: http.client.HTTPConnection | None = None

    def send(self, sent: Sent) -> None:
        self._finding.rounds += 1
        label = f"{sent.method} {sent.target[:200]} {dict(sent.headers)} with {(sent.body or b'')[:300]!r}"
        try:
            status, body = self._answer(sent)
        except TimeoutError:
            self._finding.failures.append(f"hangs: {label}")
            self.close()
            return
        except (ConnectionError, http.client.HTTPException) as error:
            self._finding.failures.append(f"no answer ({error!r}): {label}")
            self.close()
            return
        except ValueError:
            self._finding.counts["not sent"] += 1
            self.close()
            return
        asked_for = status == 504 and any(map(_gives_up, sent.headers))
        self._finding.counts["504 as asked" if asked_for else f"{status // 100}xx"] += 1
        if status >= 500 and not asked_for:
            self._finding.failures.append(f"{status}: {label}: {body[:300]!r}")
        elif status >= 400 and sent.method != "HEAD" and not _told(body):
            self._finding.failures.append(f"{status} without a message: {label}: {body[:300]!r}")
        if self._complaints.lines:
            self._finding.failures.append(f"the log says: {self._complaints.lines.pop()[-800:]}: {label}")
            self._complaints.lines.clear()

    def _answer(self, sent: Sent) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._parts.netloc, timeout=_PATIENCE)
        connection = self._connection
        connection.putrequest(sent.method, sent.target)
        for name, value in sent.headers:
            connection.putheader(name, value.encode("latin-1"))
        body = sent.body or b""
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        endless = answer.status == 200 and sent.target.split("?")[0] == _ENDLESS
        content = b"" if endless else answer.read()
        if endless or answer.will_close:
            self.close()
        return answer.status, content

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _bound(body: dict[str, Any]) -> None:
    """Ask for few tokens: it is not the engine's speed that is looked at."""
    for name in _MOST_TOKENS:
        if isinstance(body.get(name), int) and body[name] > 4:
            body[name] = 4
    for name in ("n", "best_of"):
        if isinstance(body.get(name), int) and body[name] > 2:
            body[name] = 2
    if not any(name in body for name in _MOST_TOKENS):
        body["max_tokens"] = 4


def _gives_up(header: tuple[str, str]) -> bool:
    """Whether a header asks for a 504 where no answer is stored, or at once."""
    return "only-if-cached" in header[1] or header == ("x-kvproxy-timeout", "0")


def _told(content: bytes) -> bool:
    """Whether a refusal says why, in the form of one of the APIs."""
    body = json.loads(content)
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and isinstance(error.get("message"), str) and len(error["message"]) > 0


HARNESS = Harness("fuzz", 100_000, run)

if __name__ == "__main__":
    main(HARNESS)
