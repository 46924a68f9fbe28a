"""Reads requests to warm with: JSON lines, OpenAI batch files, access logs, exports of the cache, or plain prompts."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproxy.commands.bodies import PATHS, api_of
from kvproxy.commands.files import read_text
from kvproxy.errors import InvalidRequest

# Where logs keep a request's body, where it went, and what only a log says.
_BODIES = ("body", "request", "request_body", "payload", "json")
_PLACES = ("url", "path", "endpoint", "route")
_LOGGED = {"method", "status", "status_code", *_PLACES}
_COMMON_LOG = re.compile(r'"[A-Z]+ \S+ HTTP/[\d.]+"')


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """A request to send, and the line it came from; `count` equal ones were found."""

    line: int
    path: str
    body: dict[str, Any]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A line that led to no answer, and why."""

    line: int
    message: str


@dataclass(slots=True)
class Reading:
    """What a file holds.

    Attributes:
        requests: each different request once, the most frequent first.
        passed_over: comments, lines of logs that are no request to warm with, and lines of other programs.
        failures: lines that were meant as a request and cannot be read.
    """

    requests: list[WarmRequest] = field(default_factory=list)
    passed_over: int = 0
    failures: list[Failure] = field(default_factory=list)


class _Skip(Exception):
    """The line is no request to warm with."""


def read_requests(file: Path, model: str, system: str | None) -> Reading:
    """All different requests of a file, `-` being standard input.

    A file is read as JSON lines when one of its lines holds a request, or when all of them are JSON objects. In any other
    file each line is a prompt. Lines that begin with `#` are comments.

    Args:
        file: the file.
        model: for requests without a model.
        system: system prompt for plain prompts.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it cannot be read, or there is nothing to warm with.
    """
    # Other ends of lines, such as U+2028, may stand inside a text.
    lines = [(number, line) for number, line in enumerate(read_text(file).split("\n"), 1) if line.strip()]
    told = [(number, line) for number, line in lines if not line.lstrip().startswith("#")]
    reading = Reading(passed_over=len(lines) - len(told))
    objects = [_object(line) for _, line in told]
    if any(map(_is_record, objects)) or None not in objects:
        _read_records(told, model, reading)
    else:
        _read_prompts(told, model, system, reading)
    reading.requests = most_frequent(reading.requests)
    if not reading.requests:
        first = reading.failures[0] if reading.failures else None
        raise InvalidRequest(f"{file}, line {first.line}: {first.message}" if first else f"{file} holds no prompts")
    return reading


def most_frequent(requests: list[WarmRequest]) -> list[WarmRequest]:
    """Each different request once, the most frequent first, otherwise in the order of their lines."""
    names = [json.dumps([request.path, request.body], sort_keys=True) for request in requests]
    counts = Counter(names)
    first = dict(reversed(list(zip(names, requests, strict=True))))
    once = [WarmRequest(each.line, each.path, each.body, counts[name]) for name, each in first.items()]
    return sorted(once, key=lambda request: (-request.count, request.line))


def _object(line: str) -> dict[str, Any] | None:
    """A line as a JSON object, or None."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_record(value: dict[str, Any] | None) -> bool:
    """Whether an object is a request, or a line of a log, a batch or an export."""
    return value is not None and bool({"messages", "prompt", "input", *_BODIES} & set(value))


def _read_prompts(lines: list[tuple[int, str]], model: str, system: str | None, reading: Reading) -> None:
    before = [{"role": "system", "content": system}] if system else []
    for number, line in lines:
        if _COMMON_LOG.search(line):
            reading.passed_over += 1
            continue
        messages = [*before, {"role": "user", "content": line.strip()}]
        reading.requests.append(
            WarmRequest(number, PATHS["chat"], {"model": model, "messages": messages, "stream": False})
        )


def _read_records(lines: list[tuple[int, str]], model: str, reading: Reading) -> None:
    for number, line in lines:
        try:
            reading.requests.append(_record(number, line, model))
        except _Skip:
            reading.passed_over += 1
        except InvalidRequest as error:
            reading.failures.append(Failure(number, error.message))


def _record(number: int, line: str, model: str) -> WarmRequest:
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
        return _request(number, None, value, model)
    if str(value.get("method", "POST")).upper() != "POST" or not _succeeded(value):
        raise _Skip
    body = value[name]
    if isinstance(body, str):
        body = _object(body)
        if body is None:
            raise _Skip
    place = next((str(value[name]) for name in _PLACES if value.get(name)), None)
    return _request(number, place, body, model)


def _succeeded(value: dict[str, Any]) -> bool:
    status = value.get("status", value.get("status_code"))
    return not isinstance(status, int) or 200 <= status < 300


def _request(number: int, place: str | None, body: dict[str, Any], model: str) -> WarmRequest:
    """A request to one of the APIs that are cached."""
    if not {"messages", "prompt", "input"} & set(body):
        raise InvalidRequest("expected a request, or a line of a batch, a log or an export")
    path = _path(place, body)
    if path is None and place is None:
        raise InvalidRequest(f"say where the request goes, as url or path: {', '.join(PATHS.values())}")
    if path is None:
        raise _Skip
    # Both forms of an answer fill the caches alike, and one object is simpler to check than a stream.
    return WarmRequest(number, path, {"model": model} | body | {"stream": False})


def _path(place: str | None, body: dict[str, Any]) -> str | None:
    if place is None:
        api = api_of(body)
        return PATHS[api] if api is not None else None
    if place in PATHS:
        return PATHS[place]
    route = "/" + place.partition("://")[2].partition("/")[2] if "://" in place else place
    return next((path for path in PATHS.values() if route.partition("?")[0].endswith(path)), None)
