"""Reads prompts to warm with: JSON lines of requests, OpenAI batch files, access logs, exports of the cache, or plain text."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproxy.errors import InvalidRequest, NotFound

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
"""What can be warmed, by the name that exports of the cache give it."""
# Where logs keep a request's body and where it went.
_BODIES = ("body", "request", "request_body", "payload", "json")
_PLACES = ("url", "path", "endpoint", "route")


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """A request to send, and the line it came from; `count` equal ones were found."""

    line: int
    path: str
    body: dict[str, Any]
    count: int = 1


def read_requests(file: Path, model: str, system: str | None) -> list[WarmRequest]:
    """All different requests of a file. It is JSON lines when its first line begins with `{`, else plain text.

    In access logs, what failed or is no request to warm with is passed over.

    Args:
        file: the file.
        model: for lines without a model.
        system: system prompt for plain prompts.

    Returns:
        The most frequent first, otherwise in the file's order.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: a line cannot be read, or there is nothing to warm with; nothing is sent then.
    """
    if not file.is_file():
        raise NotFound(f"no file {file}")
    try:
        lines = [(number, line) for number, line in enumerate(file.read_text().splitlines(), 1) if line.strip()]
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file} is no UTF-8 text") from None
    if lines and lines[0][1].lstrip().startswith("{"):
        read = [_from_json(file, number, line, model) for number, line in lines]
        found = most_frequent([request for request in read if request is not None])
    else:
        before = [{"role": "system", "content": system}] if system else []
        found = most_frequent([_plain(number, line, model, before) for number, line in lines])
    if not found:
        raise InvalidRequest(f"{file} holds no prompts")
    return found


def most_frequent(requests: list[WarmRequest]) -> list[WarmRequest]:
    """Each different request once, the most frequent first."""
    names = [json.dumps([request.path, request.body], sort_keys=True) for request in requests]
    counts = Counter(names)
    first = dict(reversed(list(zip(names, requests, strict=True))))
    once = [WarmRequest(each.line, each.path, each.body, counts[name]) for name, each in first.items()]
    return sorted(once, key=lambda request: (-request.count, request.line))


def _plain(number: int, line: str, model: str, before: list[dict[str, str]]) -> WarmRequest:
    messages = [*before, {"role": "user", "content": line.strip()}]
    return WarmRequest(number, PATHS["chat"], {"model": model, "messages": messages, "stream": False})


def _from_json(file: Path, number: int, line: str, model: str) -> WarmRequest | None:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{file}, line {number}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{file}, line {number}: expected an object")
    request = next((name for name in _BODIES if isinstance(value.get(name), dict | str)), None)
    if request is None:
        return _request(file, number, None, value, model)
    if str(value.get("method", "POST")).upper() != "POST" or not _succeeded(value):
        return None
    body = value[request]
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except ValueError:
            return None
    place = next((str(value[name]) for name in _PLACES if value.get(name)), None)
    return _request(file, number, place, body, model)


def _succeeded(value: dict[str, Any]) -> bool:
    status = value.get("status", value.get("status_code"))
    return not isinstance(status, int) or 200 <= status < 300


def _request(file: Path, number: int, place: str | None, body: Any, model: str) -> WarmRequest | None:
    """A request to one of the known routes; None for a log's request to another."""
    if not isinstance(body, dict) or not {"messages", "prompt", "input"} & set(body):
        raise InvalidRequest(f"{file}, line {number}: expected a request, or a line of a batch, a log or an export")
    path = _path(place, body)
    if path is None and place is None:
        raise InvalidRequest(f"{file}, line {number}: say where it goes, as url or path: {', '.join(PATHS.values())}")
    # The caches are filled alike by both forms, and one object is simpler to check than a stream.
    return None if path is None else WarmRequest(number, path, {"model": model} | body | {"stream": False})


def _path(place: str | None, body: dict[str, Any]) -> str | None:
    if place is None:
        return PATHS["chat"] if "messages" in body else PATHS["completions"] if "prompt" in body else None
    route = "/" + place.partition("?")[0].partition("://")[2].partition("/")[2] if "://" in place else place
    return PATHS.get(place) or next((path for path in PATHS.values() if route.partition("?")[0].endswith(path)), None)
