"""Requests of the APIs themselves: bodies, batches, HTTP logs with bodies, and fine-tuning data."""

from collections.abc import Iterator
from dataclasses import replace

from kvproxy.analyse.log_formats.json_texts import decoded, decoded_object
from kvproxy.analyse.log_formats.labels import LABEL_FIELDS, labels_of
from kvproxy.analyse.log_formats.log_format import (
    ANSWERED_BY_CACHE,
    PROMPT_FIELDS,
    LogFormat,
    LoggedRequest,
    Row,
    SkipRow,
    SummedUsage,
    api_of_response,
    api_of_route,
    chat_response,
    decoded_response,
    first_of,
    is_failed,
    known_fields,
    request_of,
    require_object,
)
from kvproxy.analyse.log_formats.log_times import logged_time, seconds_of, time_field
from kvproxy.apis import APIS
from kvproxy.apis.api import Api
from kvproxy.apis.json import Json, JsonObject, objects
from kvproxy.apis.modalities import logged_modalities
from kvproxy.apis.request_directives import TAGS_HEADER
from kvproxy.apis.service_tiers import BATCH, STANDARD
from kvproxy.errors import InvalidRequest
from kvproxy.journal.reader import BACKEND

BODY_FIELDS = ("body", "request_body", "request", "payload", "json", "requestBody", "request_json")
_RESPONSES = ("response_body", "response", "answer", "completion", "output", "responseBody", "response_json")
_ROUTES = ("url", "path", "endpoint", "route", "request_path", "target_url", "uri")
_STATUSES = ("status", "status_code", "response_status", "response_status_code")
_HEADERS = ("headers", "request_headers")
_LISTS = {"messages", "tools", "input"}
_LOG_FIELDS = {"method", *_STATUSES, *_ROUTES}
_EXPORTED_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "written_5m", "written_1h")
_FINE_TUNING_FIELDS = {"messages", "tools", "functions", "parallel_tool_calls"}


def _read_request(row: Row) -> Iterator[LoggedRequest]:
    """Read a request body, or a row of a log with a body. Of a flat row, only fields of the API are in the request."""
    value = _with_messages(row.value)
    if str(value.get("method", "POST")).upper() != "POST":
        raise SkipRow("not a POST request")
    if any(is_failed(value.get(name)) for name in _STATUSES):
        raise SkipRow("failed")
    route = next((str(value[name]) for name in _ROUTES if value.get(name)), None)
    api = None if route is None else api_of_route(route)
    if route is not None and api is None:
        raise SkipRow("not a cached API")
    headers = first_of(value, *_HEADERS)
    response = _response_field(value)
    body = _body(value, api)
    named = {name.lower(): str(text) for name, text in headers.items()} if isinstance(headers, dict) else {}
    yield request_of(
        row,
        body,
        api=api,
        headers=named,
        time=logged_time(value),
        response=None if response is None else decoded_response(value[response]),
        labels=labels_of(value, body, tags=named.get(TAGS_HEADER, "").split(",")),
    )


def _with_messages(value: JsonObject) -> JsonObject:
    """Return a row with the fields of its HTTP messages, as Kong and Portkey log them: `request.body`, `response.status`."""
    request, response = value.get("request"), value.get("response")
    if not isinstance(request, dict) or not isinstance(request.get("body"), dict | str):
        return value
    statuses = response if isinstance(response, dict) else {}
    return {**value, **{name: statuses[name] for name in _STATUSES if name in statuses}, **request}


def _response_field(value: JsonObject) -> str | None:
    return next((name for name in _RESPONSES if value.get(name) and isinstance(value[name], dict | str)), None)


def read_fields(value: JsonObject) -> set[str]:
    """Return the fields around the body of a row that are read."""
    time = None if logged_time(value) is None else time_field(value)
    route, headers = (next((name for name in names if value.get(name)), None) for names in (_ROUTES, _HEADERS))
    return {"method", *_STATUSES, *LABEL_FIELDS, *filter(None, (time, route, headers, _response_field(value)))}


def _body(value: JsonObject, api: Api | None) -> JsonObject:
    name = next((name for name in BODY_FIELDS if isinstance(value.get(name), dict | str)), None)
    if name is not None:
        body = decoded_object(value[name])
        if body is None:
            raise SkipRow("the body is not JSON" if value[name] else "no body")
        return body
    if not any(name in value for name in PROMPT_FIELDS) and _LOG_FIELDS & set(value):
        raise SkipRow("no body")
    # In a table, lists are texts.
    return {name: decoded(content) if name in _LISTS else content for name, content in known_fields(value, api).items()}


def _read_fine_tuning(row: Row) -> Iterator[LoggedRequest]:
    messages = objects(row.value["messages"])
    if not messages or messages[-1].get("role") != "assistant":
        raise InvalidRequest("the last message of a fine-tuning row is the answer of the assistant")
    body: JsonObject = {**row.value, "messages": list(messages[:-1])}
    yield request_of(row, body, api=APIS["chat"], response=chat_response(messages[-1]))


def _is_fine_tuning(value: JsonObject) -> bool:
    messages = objects(value.get("messages"))
    return set(value) <= _FINE_TUNING_FIELDS and bool(messages) and messages[-1].get("role") == "assistant"


class _FineTuning(LogFormat):
    def missing(self, value: JsonObject) -> list[str]:
        return [] if _is_fine_tuning(value) else ["messages that end with an answer of the assistant, without a model"]


def _read_preference(row: Row) -> Iterator[LoggedRequest]:
    body = require_object(row.value["input"], "input")
    yield request_of(row, known_fields(body), api=APIS["chat"], response=chat_response(row.value["preferred_output"]))


def _read_prompt_completion(row: Row) -> Iterator[LoggedRequest]:
    body = known_fields(row.value, APIS["completions"])
    yield request_of(row, body, api=APIS["completions"], response=decoded_response(row.value["completion"]))


def _read_anthropic_batch(row: Row) -> Iterator[LoggedRequest]:
    request = request_of(row, require_object(row.value["params"], "params"), api=APIS["messages"])
    yield _of_batch(request, row)


def _read_batch(row: Row) -> Iterator[LoggedRequest]:
    for request in _read_request(row):
        yield _of_batch(request, row)


def _of_batch(request: LoggedRequest, row: Row) -> LoggedRequest:
    return replace(request, processing=BATCH, batch_id=str(row.value["custom_id"]))


def _read_export(row: Row) -> Iterator[LoggedRequest]:
    """Read a line of `kvproxy log export`. Its tier is the one that served the request, whatever its body asked for."""
    tier = row.value.get("service_tier", "")
    for request in _read_request(row):
        processing = STANDARD if tier is None else str(tier)
        yield replace(
            request,
            processing=processing,
            usage=_exported_usage(row.value),
            seconds=seconds_of(row.value.get("total_ms")),
            first_seconds=seconds_of(row.value.get("first_ms")) or None,
        )


def _exported_usage(value: JsonObject) -> SummedUsage | None:
    """Return the usage of a request that reached the backend; None for a hit, whose usage belongs to another request."""
    if value["layer"] not in BACKEND:
        return None
    counts = [value.get(name) for name in _EXPORTED_COUNTS]
    prompt, completion, cached, short, hour = (count if isinstance(count, int) else None for count in counts)
    modalities = logged_modalities(value.get("modalities"))
    return None if prompt is None else SummedUsage(1, prompt, completion, cached, short, hour, modalities=modalities)


def _read_export_usage(row: Row) -> Iterator[LoggedRequest]:
    if row.value["layer"] not in BACKEND:
        raise SkipRow(ANSWERED_BY_CACHE)
    yield from _read_export(row)


def _refuse_batch_output(row: Row) -> Iterator[LoggedRequest]:
    raise InvalidRequest("this is the output of a batch, which has no prompts: give the input file of the batch, too")


def _read_batch_usage(row: Row) -> Iterator[LoggedRequest]:
    if row.value.get("error") or is_failed(first_of(row.value, "response.status_code")):
        raise SkipRow("failed")
    yield _of_batch(_usage_of(row, first_of(row.value, "response.body")), row)


def _read_anthropic_batch_usage(row: Row) -> Iterator[LoggedRequest]:
    if first_of(row.value, "result.type") != "succeeded":
        raise SkipRow("failed")
    yield _of_batch(_usage_of(row, first_of(row.value, "result.message")), row)


def _read_response_usage(row: Row) -> Iterator[LoggedRequest]:
    yield _usage_of(row, row.value)


def _usage_of(row: Row, body: Json) -> LoggedRequest:
    response = require_object(body, "the response")
    name = api_of_response(response)
    if name not in APIS:
        raise SkipRow("not a cached API")
    model, time = response.get("model"), logged_time(response)
    return LoggedRequest(
        row.number, APIS[name], {"model": model or row.model}, time=time, response=response, names_model=bool(model)
    )


def _refuse_responses(row: Row) -> Iterator[LoggedRequest]:
    raise InvalidRequest("these are responses without their requests: give a log that has both")


OUTPUT_FORMATS = "batch-output", "anthropic-batch-output"
FORMATS = (
    LogFormat(
        OUTPUT_FORMATS[0],
        "output of an OpenAI batch",
        ("custom_id", "id", "response.status_code|error.message"),
        _refuse_batch_output,
        has_requests=False,
        read_usage=_read_batch_usage,
    ),
    LogFormat(
        OUTPUT_FORMATS[1],
        "output of an Anthropic batch",
        ("custom_id", "result.type"),
        _refuse_batch_output,
        has_requests=False,
        read_usage=_read_anthropic_batch_usage,
    ),
    LogFormat("anthropic-batch", "Anthropic batch", ("custom_id", "params"), _read_anthropic_batch),
    LogFormat(
        "kvproxy",
        "requests of kvproxy log export",
        ("custom_id", "url", "body", "layer", "time"),
        _read_export,
        read_usage=_read_export_usage,
    ),
    LogFormat("batch", "batch lines (custom_id, url, body)", ("custom_id", "url", "body"), _read_batch),
    LogFormat("preferences", "preference data for fine-tuning", ("input", "preferred_output"), _read_preference),
    _FineTuning("fine-tuning", "fine-tuning data", ("messages",), _read_fine_tuning),
    LogFormat("completions", "prompts with completions", ("prompt", "completion"), _read_prompt_completion),
    LogFormat("requests", "requests", ("|".join([*PROMPT_FIELDS, *BODY_FIELDS]),), _read_request),
    LogFormat(
        "responses",
        "responses",
        ("choices", "object|usage"),
        _refuse_responses,
        has_requests=False,
        read_usage=_read_response_usage,
    ),
)
