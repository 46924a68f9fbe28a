"""Reads requests from files: JSON lines, OpenAI batch files, access logs, exports of the cache, or plain prompts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from kvproxy.apis import APIS
from kvproxy.apis.api import Api
from kvproxy.apis.json import Json, JsonObject, as_object, loads
from kvproxy.errors import InvalidRequest
from kvproxy.offline.api_detection import api_of

# Where logs keep a request's body, what came back, where it went, when and by whom, and what only a log says.
_BODIES = ("body", "request", "request_body", "payload", "json")
_ANSWERS = ("response", "response_body", "answer", "completion", "output")
_PLACES = ("url", "path", "endpoint", "route")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "created", "created_at")
_LOGGED = {"method", "status", "status_code", *_PLACES}
_COMMON_LOG = re.compile(r'"[A-Z]+ \S+ HTTP/[\d.]+"')
_IN_MILLISECONDS = 1e11  # Seconds since the epoch reach this in the year 5138.


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request of the past.

    Attributes:
        line: of the file, from 1.
        api: which API it is for.
        body: with its model, and without streaming: both forms are alike to the caches.
        headers: what the log kept of them, names in lower case.
        time: seconds since the epoch; None where the log does not tell.
        answer: what came back, whole; a text stands for an answer that says it. None where the log does not tell.
    """

    line: int
    api: Api
    body: JsonObject
    headers: Mapping[str, str] = field(default_factory=dict)
    time: float | None = None
    answer: JsonObject | str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A line that led to no answer, and why."""

    line: int
    message: str


@dataclass(slots=True)
class Reading:
    """What a file holds.

    Attributes:
        requests: in the order of the file.
        passed_over: comments, lines of logs that are no request to a cached API, and lines of other programs.
        failures: lines that were meant as a request and cannot be read.
    """

    requests: list[LoggedRequest] = field(default_factory=list)
    passed_over: int = 0
    failures: list[Failure] = field(default_factory=list)


class _Skip(Exception):
    """The line is no request to a cached API."""


def read_log(file: Path, text: str, model: str, system: str | None = None) -> Reading:
    """All requests of a file.

    A file is read as JSON lines when one of its lines holds a request, or when all of them are JSON objects. In any other
    file each line is a prompt. Lines that begin with `#` are comments.

    Args:
        file: its name, for errors.
        text: what it holds.
        model: for requests without a model.
        system: system prompt for plain prompts.

    Raises:
        InvalidRequest: there is no request in it.
    """
    # Other ends of lines, such as U+2028, may stand inside a text.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    told = [(number, line) for number, line in lines if not line.lstrip().startswith("#")]
    reading = Reading(passed_over=len(lines) - len(told))
    objects = [_object(line) for _, line in told]
    if any(map(_is_record, objects)) or None not in objects:
        _read_records(told, model, reading)
    else:
        _read_prompts(told, model, system, reading)
    if not reading.requests:
        first = reading.failures[0] if reading.failures else None
        raise InvalidRequest(f"{file}, line {first.line}: {first.message}" if first else f"{file} holds no prompts")
    return reading


def _object(line: str) -> JsonObject | None:
    """A line as a JSON object, or None."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        return as_object(loads(line.encode()))
    except ValueError:
        return None


def _is_record(value: JsonObject | None) -> bool:
    """Whether an object is a request, or a line of a log, a batch or an export."""
    return value is not None and bool({"messages", "prompt", "input", *_BODIES} & set(value))


def _read_prompts(lines: list[tuple[int, str]], model: str, system: str | None, reading: Reading) -> None:
    before: list[Json] = [{"role": "system", "content": system}] if system else []
    for number, line in lines:
        if _COMMON_LOG.search(line):
            reading.passed_over += 1
            continue
        messages: list[Json] = [*before, {"role": "user", "content": line.strip()}]
        body: JsonObject = {"model": model, "messages": messages, "stream": False}
        reading.requests.append(LoggedRequest(number, APIS["chat"], body))


def _read_records(lines: list[tuple[int, str]], model: str, reading: Reading) -> None:
    for number, line in lines:
        try:
            reading.requests.append(_record(number, line, model))
        except _Skip:
            reading.passed_over += 1
        except InvalidRequest as error:
            reading.failures.append(Failure(number, error.message))


def _record(number: int, line: str, model: str) -> LoggedRequest:
    """The request of a line.

    Raises:
        InvalidRequest: it looks like one and cannot be read.
    """
    if not line.lstrip().startswith("{"):
        raise _Skip
    value = _object(line)
    if value is None:
        raise InvalidRequest("this is not a JSON object")
    name = next((name for name in _BODIES if isinstance(value.get(name), dict | str)), None)
    if name is None:
        if _LOGGED & set(value) and not {"messages", "prompt", "input"} & set(value):
            raise _Skip
        return LoggedRequest(number, *_request(None, value, model))
    if str(value.get("method", "POST")).upper() != "POST" or not _succeeded(value):
        raise _Skip
    body = value[name]
    if isinstance(body, str):
        body = _object(body)
        if body is None:
            raise _Skip
    place = next((str(value[name]) for name in _PLACES if value.get(name)), None)
    api, asked = _request(place, as_object(body), model)
    return LoggedRequest(number, api, asked, _headers(value), _time(value), _answer(value))


def _succeeded(value: JsonObject) -> bool:
    status = value.get("status", value.get("status_code"))
    return not isinstance(status, int) or 200 <= status < 300


def _request(place: str | None, body: JsonObject, model: str) -> tuple[Api, JsonObject]:
    """A request to one of the APIs that are cached."""
    if not {"messages", "prompt", "input"} & set(body):
        raise InvalidRequest("expected a request, or a line of a batch, a log or an export")
    api = _api(place, body)
    if api is None and place is None:
        paths = ", ".join(api.path for api in APIS.values())
        raise InvalidRequest(f"say where the request goes, as url or path: {paths}")
    if api is None:
        raise _Skip
    # Both forms of an answer fill the caches alike, and one object is simpler to check than a stream.
    return api, {"model": model} | body | {"stream": False}


def _api(place: str | None, body: JsonObject) -> Api | None:
    if place is None:
        name = api_of(body)
        return None if name is None else APIS[name]
    route = "/" + place.partition("://")[2].partition("/")[2] if "://" in place else place
    route = route.partition("?")[0]
    return next((api for api in APIS.values() if place == api.name or route.endswith(api.path)), None)


def _headers(value: JsonObject) -> dict[str, str]:
    found = value.get("headers", value.get("request_headers"))
    return {name.lower(): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _time(value: JsonObject) -> float | None:
    told = next((value[name] for name in _TIMES if value.get(name) is not None), None)
    if isinstance(told, str):
        try:
            return datetime.fromisoformat(told).timestamp()
        except ValueError:
            return None
    if not isinstance(told, int | float) or isinstance(told, bool):
        return None
    return told / 1000 if told > _IN_MILLISECONDS else float(told)


def _answer(value: JsonObject) -> JsonObject | str | None:
    found = next((value[name] for name in _ANSWERS if isinstance(value.get(name), dict | str)), None)
    if isinstance(found, str):
        return (_object(found) or found) or None
    # A batch keeps the answer inside of what the server sent.
    inner = found.get("body") if isinstance(found, dict) else None
    found = inner if isinstance(inner, dict) else found
    return found if isinstance(found, dict) and found else None
