"""Valid and invalid requests generated from the OpenAPI document, over every route, with mutations.

No request receives a 500, causes an error in the log, or hangs.
"""

import contextlib
import http.client
import json
import logging
import random
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount

from kvproxy.apis.request_directives import ADMIN_TOKEN_HEADER
from kvproxy.http import routes
from kvproxy.http.admin.app import ROUTES as ADMIN_ROUTES
from kvproxy.http.openapi import document
from kvproxy.settings import load_settings
from tests.faults.harness import Advance, Finding, split
from tests.faults.mutants import Sent, mutant
from tests.plain_upstream import WHOLE
from tests.servers import run_proxy, run_upstream

_TIMEOUT = 60.0
_TOKEN = "fuzz"
_GENERATED = 60
"""Maximum number of generated requests per route and mode; further requests are mutations of them."""
_OMITTED = ("content-length", "user-agent", "host")
_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
_ENDLESS = "/admin/log/live"
"""A route whose response ends when the client disconnects."""
_MODEL = {"model": "demo", "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "user": "u", "cache_salt": "s"}
_OPENAI = _MODEL | {"n": 2, "stop": ["x"], "frequency_penalty": 0, "presence_penalty": 0, "max_tokens": 2}
_TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is a block?"}]},
]
_FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_CHATS = [
    {"messages": _TURNS, **_OPENAI, "logprobs": True, "top_logprobs": 2},
    {
        "messages": _TURNS,
        **_OPENAI,
        **_STREAM,
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": "auto",
    },
    {"messages": _TURNS, **_OPENAI, "response_format": {"type": "json_object"}, "prompt_logprobs": 1},
]
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": _CHATS,
    "/admin/explain": _CHATS,
    "/admin/blocks/pins": _CHATS,
    "/v1/completions": [
        {"prompt": "What?", **_OPENAI, "best_of": 2, "echo": True, "logprobs": 2},
        {"prompt": [1, 2, 3], **_OPENAI, **_STREAM, "suffix": "x", "prompt_logprobs": 1},
    ],
    "/v1/messages": [
        {"messages": _TURNS[1:], "max_tokens": 2, **_MODEL, "system": "Be brief.", "stop_sequences": ["x"]},
        {
            "messages": _TURNS[1:],
            "max_tokens": 2,
            "stream": True,
            "tools": [{"name": "f", "input_schema": _FUNCTION["parameters"]}],
            "thinking": {"type": "enabled", "budget_tokens": 2},
        },
    ],
    "/v1/responses": [
        {"input": "What?", **_MODEL, "instructions": "Be brief.", "max_output_tokens": 2, "text": {}, "reasoning": {}},
        {"input": _TURNS, "stream": True, "previous_response_id": "r", "tools": [{"type": "function", **_FUNCTION}]},
    ],
    "/v1/embeddings": [{"model": "demo", "input": ["a"], "encoding_format": "base64", "dimensions": 8, "user": "u"}],
}
"""Valid bodies of each route; mutants change one or two of their fields."""


class _ErrorLog(logging.Handler):
    """Collects the errors that are logged in a block."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def __enter__(self) -> "_ErrorLog":
        self._loggers = [logging.getLogger(name) for name in ("kvproxy", "uvicorn.error", "asyncio")]
        for each in self._loggers:
            each.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._loggers:
            each.removeHandler(self)


async def _complete(request: Request) -> Response:
    await request.body()
    return JSONResponse(WHOLE)


def run(rounds: int, seed_: int, advance: Advance) -> list[Finding]:
    """Send requests to a proxy in front of an upstream, and a quarter of them to the embedded engine."""
    findings = []
    schema = document([*routes.ROUTES, Mount("/admin", routes=ADMIN_ROUTES)])
    for path, bodies in BODIES.items():
        schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"] = {"enum": bodies}
    operations = [found.ok() for found in schemathesis.openapi.from_dict(schema).get_all_operations()]
    # A short run generates requests for a sample of the routes only.
    operations = random.Random(seed_).sample(operations, min(len(operations), rounds // 6))
    most = max(1, min(rounds // 150, _GENERATED))
    made = [sent for each in operations for mode in _MODES if (sent := _generate(each, mode, seed_, most))]
    with tempfile.TemporaryDirectory() as folder, run_upstream(_complete) as upstream:
        # Without a token, the first mutant with X-Forwarded-For closes the admin routes.
        common = {"admin_token": _TOKEN, "cache": {"policy": "threshold"}, "limits": {"body_seconds": 10.0}}
        for name, share, own in (
            ("in front of an upstream", rounds - rounds // 4, {"upstream": upstream}),
            ("embedded engine", rounds // 4, {"engine": {"num_blocks": 256}, "tiers": {"host": 1 << 22}}),
        ):
            settings_ = load_settings(data=Path(folder) / name, **common, **own)
            with Finding(f"fuzzed: {name}").timed() as finding, run_proxy(settings_) as (url, _):
                _fuzz(url, made, share, seed_, advance, finding)
            findings.append(finding)
    return findings


def _fuzz(url: str, made: list[list[Sent]], rounds: int, seed_: int, advance: Advance, finding: Finding) -> None:
    generator = random.Random(seed_)
    with _ErrorLog() as errors, contextlib.closing(_Client(url, errors, finding)) as client:
        for requests_, share in split(rounds, made):
            for number in range(share):
                chosen = requests_[number % len(requests_)]
                # Generating a request takes far longer than sending it, so repetitions are mutated.
                client.send(chosen if number < len(requests_) else mutant(chosen, generator))
                advance()


def _generate(
    operation: schemathesis.APIOperation, mode: schemathesis.GenerationMode, seed_: int, most: int
) -> list[Sent]:
    """Return valid or invalid requests for a route; the list is empty if a route accepts everything."""
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
        # Some texts are not allowed in a URL or a header.
        with contextlib.suppress(ValueError, UnicodeError):
            made.append(_prepare(case))

    with contextlib.suppress(Unsatisfiable, schemathesis.errors.SchemathesisError):
        make()
    return made


def _prepare(case: Case) -> Sent:
    ready = requests.Request(**case.as_transport_kwargs(base_url="http://proxy")).prepare()
    body = ready.body.encode() if isinstance(ready.body, str) else ready.body
    headers = ((name.lower(), str(value)) for name, value in ready.headers.items())
    kept = tuple(each for each in headers if each[0] not in _OMITTED)
    return Sent(str(ready.method), ready.path_url, (*kept, (ADMIN_TOKEN_HEADER, _TOKEN)), body)


class _Client:
    """Sends requests over one connection, and checks the responses."""

    def __init__(self, url: str, errors: _ErrorLog, finding: Finding) -> None:
        self._parts = urlsplit(url)
        self._errors = errors
        self._finding = finding
        self._connection: http.client.HTTPConnection | None = None

    def send(self, sent: Sent) -> None:
        self._finding.rounds += 1
        label = f"{sent.method} {sent.target[:200]} {dict(sent.headers)} with {(sent.body or b'')[:300]!r}"
        counts, failures = self._finding.counts, self._finding.failures
        try:
            status, body = self._answer(sent)
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"no answer ({error!r}): {label}")
            self.close()
            return
        except ValueError:
            counts["not sent"] += 1
            self.close()
            return
        expected = status == 504 and any(map(_permits_504, sent.headers))
        counts["504 as asked" if expected else f"{status // 100}xx"] += 1
        if status >= 500 and not expected:
            failures.append(f"{status}: {label}: {body[:300]!r}")
        elif status >= 400 and sent.method != "HEAD" and not _has_message(body):
            failures.append(f"{status} without a message: {label}: {body[:300]!r}")
        if self._errors.lines:
            failures.append(f"logged: {self._errors.lines.pop()[-800:]}: {label}")
            self._errors.lines.clear()

    def _answer(self, sent: Sent) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._parts.netloc, timeout=_TIMEOUT)
        connection = self._connection
        own_host = any(name == "host" for name, _ in sent.headers)
        connection.putrequest(sent.method, sent.target, skip_host=own_host)
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
    """Limit the tokens and choices: the speed of the engine is not tested."""
    for names, most in ((_TOKEN_LIMITS, 4), (("n", "best_of"), 2)):
        for name in names:
            if isinstance(body.get(name), int) and body[name] > most:
                body[name] = most
    if not any(name in body for name in _TOKEN_LIMITS):
        body["max_tokens"] = 4


def _permits_504(header: tuple[str, str]) -> bool:
    """Return whether a header requires a 504 without a stored answer, or at once."""
    return "only-if-cached" in header[1] or (header[0] == "x-kvproxy-timeout" and header[1] != "30")


def _has_message(content: bytes) -> bool:
    """Return whether an error response contains a message, in the format of one of the APIs."""
    body = json.loads(content)
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and isinstance(error.get("message"), str) and len(error["message"]) > 0
