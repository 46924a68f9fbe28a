"""Reads files of prompts: JSON lines of chat requests, OpenAI batch files, or plain text with one prompt a line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproxy.errors import InvalidRequest, NotFound

_PATHS = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """A request to send, and the line it came from."""

    line: int
    path: str
    body: dict[str, Any]


def read_requests(file: Path, model: str, system: str | None) -> list[WarmRequest]:
    """All requests of a file. It is JSON lines when its first line begins with `{`, else plain text.

    Args:
        file: the file.
        model: for lines without a model.
        system: system prompt for plain prompts.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: a line cannot be read; nothing is sent then.
    """
    if not file.is_file():
        raise NotFound(f"no file {file}")
    try:
        lines = [(number, line) for number, line in enumerate(file.read_text().splitlines(), 1) if line.strip()]
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file} is no UTF-8 text") from None
    if not lines:
        raise InvalidRequest(f"{file} holds no prompts")
    if lines[0][1].lstrip().startswith("{"):
        return [_from_json(file, number, line, model) for number, line in lines]
    before = [{"role": "system", "content": system}] if system else []
    return [
        WarmRequest(
            number, _PATHS[0], {"model": model, "messages": [*before, {"role": "user", "content": line.strip()}]}
        )
        for number, line in lines
    ]


def _from_json(file: Path, number: int, line: str, model: str) -> WarmRequest:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{file}, line {number}: not JSON ({error})") from None
    path = value.get("url", _PATHS[0]) if isinstance(value, dict) else None
    body = value.get("body", value) if isinstance(value, dict) else None
    if not isinstance(body, dict) or not ("messages" in body or "prompt" in body):
        raise InvalidRequest(f"{file}, line {number}: expected a chat request or a batch line with a 'body'")
    if path not in _PATHS:
        raise InvalidRequest(f"{file}, line {number}: cannot warm {path!r}, only {' and '.join(_PATHS)}")
    if "messages" not in body:
        path = _PATHS[1]
    body = {"model": model} | body
    # The caches are filled alike by both forms, and one object is simpler to check than a stream.
    return WarmRequest(number, path, body | {"stream": False})
