"""Reads requests from JSON lines, batch files, access logs, cache exports, and lists of prompts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import datetime
from pathlib import Path

from kvproxy.apis import APIS
from kvproxy.apis.api import Api, ApiName
from kvproxy.apis.json import Json, JsonMap, JsonObject, as_list, as_object, field, loads, objects
from kvproxy.errors import InvalidRequest

_BODIES = ("body", "request", "request_body", "payload", "json")
_RESPONSES = ("response", "response_body", "answer", "completion", "output")
_ROUTES = ("url", "path", "endpoint", "route")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "created", "created_at")
_PROMPTS = {"messages", "prompt", "input"}
_LOG_FIELDS = {"method", "status", "status_code", *_ROUTES}
_HEADERS = ("headers", "request_headers")
_OWN = {*_LOG_FIELDS, *_TIMES, *_RESPONSES, *_HEADERS}
_ACCESS_LOG = re.compile(r'"[A-Z]+ \S+ HTTP/[\d.]+"')
# Larger timestamps are in milliseconds: in seconds they would be after the year 5138.
_MIN_MILLISECONDS = 1e11
_MESSAGES_FIELDS = {"system", "stop_sequences", "thinking", "anthropic_version", "anthropic_beta"}
_MESSAGES_BLOCKS = {"tool_use", "tool_result", "image", "document", "thinking"}
_RESPONSES_FIELDS = set("instructions max_output_tokens previous_response_id reasoning store text tools".split())


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request of a log.

    Attributes:
        line: number of its line, from 1.
        body: request body, in which `model` is set and `stream` is false.
        headers: lower-case names.
        time: arrival in seconds since the epoch; None if not logged.
        response: response body, or only its text; None if not logged.
        seconds: duration until the response ended; 0 if unknown.
    """

    line: int
    api: Api
    body: JsonObject
    headers: Mapping[str, str] = dataclass_field(default_factory=dict)
    time: float | None = None
    response: JsonObject | str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LineError:
    line: int
    message: str


@dataclass(slots=True)
class RequestLog:
    """The content of a log, in file order.

    Attributes:
        skipped: number of lines without a request to a cached API, such as comments and blank lines.
        first_record: number of the first line with a request; None if each line was read as a prompt.
        plain_lines: numbers of the lines that are not JSON objects, in a log that was read as JSON lines.
    """

    requests: list[LoggedRequest] = dataclass_field(default_factory=list)
    skipped: int = 0
    errors: list[LineError] = dataclass_field(default_factory=list)
    first_record: int | None = None
    plain_lines: list[int] = dataclass_field(default_factory=list)


class _SkipLine(Exception): ...


def read_log(file: Path, text: str, model: str, system: str | None = None) -> RequestLog:
    """Parse all requests of a log. Raises InvalidRequest if it contains no request.

    The log is read as JSON lines if a line contains a request, or if all lines are objects. Otherwise each line is a
    prompt, except comments that start with `#`.

    Args:
        file: name of the log in error messages.
        model: model of requests without a model.
        system: system prompt for lines that are prompts.
    """
    # str.splitlines would also split at U+2028 inside a text.
    lines = list(enumerate(text.removesuffix("\n").split("\n"), 1))
    content = [(number, line) for number, line in lines if line.strip() and not line.lstrip().startswith("#")]
    log = RequestLog(skipped=len(lines) - len(content))
    values = [(number, _json_object(line)) for number, line in content]
    records = [number for number, value in values if value and {*_PROMPTS, *_BODIES} & set(value)]
    if records or all(value is not None for _, value in values):
        log.first_record = records[0] if records else None
        log.plain_lines = [number for number, line in content if not line.lstrip().startswith("{")]
        _read_records(content, model, log)
    else:
        _read_prompts(content, model, system, log)
    if not log.requests:
        first = log.errors[0] if log.errors else None
        raise InvalidRequest(f"{file}, line {first.line}: {first.message}" if first else f"{file} contains no prompts")
    return log


def _json_object(line: str) -> JsonObject | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        return as_object(loads(line.encode()))
    except ValueError:
        return None


def _read_prompts(lines: list[tuple[int, str]], model: str, system: str | None, log: RequestLog) -> None:
    before: list[Json] = [{"role": "system", "content": system}] if system else []
    for number, line in lines:
        if _ACCESS_LOG.search(line):
            log.skipped += 1
            continue
        messages: list[Json] = [*before, {"role": "user", "content": line.strip()}]
        body: JsonObject = {"model": model, "messages": messages, "stream": False}
        log.requests.append(LoggedRequest(number, APIS["chat"], body))


def _read_records(lines: list[tuple[int, str]], model: str, log: RequestLog) -> None:
    for number, line in lines:
        try:
            log.requests.append(_read_record(number, line, model))
        except _SkipLine:
            log.skipped += 1
        except InvalidRequest as error:
            log.errors.append(LineError(number, error.message))


def _read_record(line_number: int, line: str, model: str) -> LoggedRequest:
    if not line.lstrip().startswith("{"):
        raise _SkipLine
    value = _json_object(line)
    if value is None:
        raise InvalidRequest("this is not a JSON object")
    status = value.get("status", value.get("status_code"))
    route = next((str(value[name]) for name in _ROUTES if value.get(name)), None)
    if (
        (not {*_PROMPTS, *_BODIES} & set(value) and _LOG_FIELDS & set(value))
        or str(value.get("method", "POST")).upper() != "POST"
        or (isinstance(status, int) and not 200 <= status < 300)
        or (route is not None and _api_of_route(route) is None)
    ):
        raise _SkipLine
    name = next((name for name in _BODIES if isinstance(value.get(name), dict | str)), None)
    # Fields of the log and of the request may be mixed.
    body: Json = {key: each for key, each in value.items() if key not in _OWN} if name is None else value[name]
    if isinstance(body, str):
        body = _json_object(body)
        if body is None:
            raise _SkipLine
    api, request = _api_and_body(route, as_object(body), model)
    headers = next((value[name] for name in _HEADERS if name in value), None)
    lower = {name.lower(): str(text) for name, text in headers.items()} if isinstance(headers, dict) else {}
    return LoggedRequest(line_number, api, request, lower, logged_time(value), _response(value))


def _api_and_body(route: str | None, body: JsonObject, model: str) -> tuple[Api, JsonObject]:
    if not _PROMPTS & set(body):
        raise InvalidRequest("expected a request, or a line of a batch, a log or an export")
    if any(isinstance(body.get(name), int | float) for name in _PROMPTS):
        raise InvalidRequest("the prompt is a number: kvproxy log prints no whole prompts, but cache export does")
    name = detect_api(body)
    api = _api_of_route(route) if route is not None else APIS[name] if name is not None else None
    if api is None:
        paths = ", ".join(api.path for api in APIS.values())
        raise InvalidRequest(f"the API is ambiguous: add the route as url or path, one of {paths}")
    return api, {"model": model} | body | {"stream": False}


def detect_api(body: JsonMap) -> ApiName | None:
    """Return the API of a request body; None if the body fits several APIs, for example if it only has `input`."""
    if "messages" in body:
        return "messages" if _is_for_messages(body) else "chat"
    if "prompt" in body:
        return "completions"
    if "input" not in body:
        return None
    if {"dimensions", "encoding_format"} & set(body):
        return "embeddings"
    return "responses" if objects(body["input"]) or _RESPONSES_FIELDS & set(body) else None


def _is_for_messages(body: JsonMap) -> bool:
    contents = [turn["content"] for turn in objects(body["messages"]) if isinstance(turn.get("content"), list)]
    return (
        bool(_MESSAGES_FIELDS & set(body))
        or any("input_schema" in tool for tool in objects(body.get("tools")))
        or any(field(block, "type") in _MESSAGES_BLOCKS for content in contents for block in as_list(content))
    )


def _api_of_route(route: str) -> Api | None:
    path = "/" + route.partition("://")[2].partition("/")[2] if "://" in route else route
    path = path.partition("?")[0]
    return next((api for api in APIS.values() if route == api.name or path.endswith(api.path)), None)


def logged_time(value: JsonObject) -> float | None:
    """Return the time of a line in seconds since the epoch; None if it has no valid time."""
    time = next((value[name] for name in _TIMES if value.get(name) is not None), None)
    if isinstance(time, str):
        try:
            return datetime.fromisoformat(time).timestamp()
        except ValueError:
            return None
    if not isinstance(time, int | float) or isinstance(time, bool):
        return None
    return time / 1000 if time > _MIN_MILLISECONDS else float(time)


def _response(value: JsonObject) -> JsonObject | str | None:
    found = next((value[name] for name in _RESPONSES if isinstance(value.get(name), dict | str)), None)
    if isinstance(found, str):
        return _json_object(found) or found or None
    inner = found.get("body") if isinstance(found, dict) else None
    found = inner if isinstance(inner, dict) else found
    return found if isinstance(found, dict) and found else None
