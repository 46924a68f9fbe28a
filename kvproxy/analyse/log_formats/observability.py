"""Exports of observability tools: Langfuse and OpenPipe."""

import re
from collections.abc import Iterator

from kvproxy.analyse.log_formats.json_texts import decoded, decoded_object
from kvproxy.analyse.log_formats.labels import labels_of
from kvproxy.analyse.log_formats.log_format import (
    LogFormat,
    LoggedRequest,
    Row,
    SkipRow,
    chat_response,
    first_of,
    is_failed,
    known_fields,
    request_of,
)
from kvproxy.analyse.log_formats.log_times import parse_time, seconds_between
from kvproxy.apis import APIS
from kvproxy.apis.json import Json, JsonObject, as_object, as_token_count, field, objects
from kvproxy.apis.modalities import MODALITIES
from kvproxy.errors import InvalidRequest

# Names of the kinds of tokens in Langfuse's usage.
_INPUT = re.compile("input|prompt|^cache")
_OUTPUT = re.compile("output|completion")
_CACHE_WRITE = re.compile("cache_?(creation|write)", re.IGNORECASE)
_MAX_DIGITS = 10


def _read_langfuse(row: Row) -> Iterator[LoggedRequest]:
    value = row.value
    if str(value.get("type", "GENERATION")).upper() not in ("GENERATION", "EMBEDDING"):
        raise SkipRow("not a generation")
    if is_failed(value.get("level")):
        raise SkipRow("failed")
    prompt = decoded(value.get("input"))
    if not prompt:
        raise InvalidRequest("the observation has no input: enable the input in the export")
    parameters = decoded_object(first_of(value, "modelParameters", "model_parameters")) or {}
    body: JsonObject
    if isinstance(prompt, dict):
        body = prompt
    elif isinstance(prompt, list):
        body = {"messages": prompt}
    else:
        body = {"messages": [{"role": "user", "content": prompt}]}
    model = first_of(value, "model", "provided_model_name", "providedModelName")
    body = {**parameters, **body} | ({} if body.get("model") else {"model": model})
    start = parse_time(first_of(value, "startTime", "start_time"))
    end = parse_time(first_of(value, "endTime", "end_time"))
    session = first_of(value, "sessionId", "session_id", "traceId", "trace_id")
    yield request_of(
        row,
        known_fields(body),
        headers={"x-session-id": str(session)} if session else {},
        time=start,
        response=_with_langfuse_usage(value.get("output"), value),
        seconds=seconds_between(start, end),
        labels=labels_of(value),
    )


def _with_langfuse_usage(output: Json, value: JsonObject) -> JsonObject | str | None:
    usage, response = _langfuse_usage(value), chat_response(output)
    if usage is not None and isinstance(response, str):
        response = chat_response({"role": "assistant", "content": response})
    if usage is None or not isinstance(response, dict) or "usage" in response:
        return response
    return {**response, "usage": usage}


def _langfuse_usage(value: JsonObject) -> JsonObject | None:
    """Return Langfuse's usage in the form of OpenAI; None without one.

    Langfuse names the kinds of tokens freely, such as `input_cached_tokens`, `cache_read_input_tokens`, or
    `output_reasoning_tokens`. Its own reports, too, take each name with `input` or `output` for a part of that sum.
    Source: langfuse.com/docs/observability/features/token-and-cost-tracking.
    """
    counts = decoded_object(first_of(value, "usageDetails", "usage_details", "usage")) or {}
    prompt = {name: count for name in counts if _INPUT.search(name) and (count := _count(counts[name])) is not None}
    output = {name: count for name in counts if _OUTPUT.search(name) and (count := _count(counts[name])) is not None}
    if not prompt:
        return None
    written = [count for name, count in prompt.items() if _CACHE_WRITE.search(name)]
    cached = sum(count for name, count in prompt.items() if "cache" in name and not _CACHE_WRITE.search(name))
    sums = sum(prompt.values()), sum(output.values())
    total, whole = _count(counts.get("total")), (prompt.get("input", 0), output.get("output", 0))
    if total is not None and total == sum(whole) != sum(sums):
        # The sender counted the other kinds as parts of these two.
        sums = whole
    reported: JsonObject = {"prompt_tokens": sums[0], "completion_tokens": sums[1]}
    if any("cache" in name for name in prompt):
        # Not each provider reports its writes.
        writes: JsonObject = {"cache_write_tokens": sum(written)} if written else {}
        reported["prompt_tokens_details"] = {"cached_tokens": cached, **writes}
    for field_name, counted in (("prompt_tokens_details", prompt), ("completion_tokens_details", output)):
        for modality in MODALITIES:
            if tokens := sum(count for name, count in counted.items() if modality in name.lower()):
                details: JsonObject = {f"{modality}_tokens": tokens}
                reported[field_name] = as_object(reported.get(field_name, {})) | details
    return reported


def _count(number: Json) -> int | None:
    """Return a count of tokens; ClickHouse writes large integers as strings."""
    is_text = isinstance(number, str) and number.isdecimal() and len(number) < _MAX_DIGITS
    return as_token_count(int(str(number)) if is_text else number)


def _read_openpipe(row: Row) -> Iterator[LoggedRequest]:
    prompt, answer = decoded(row.value["input"]), row.value.get("output")
    body: JsonObject = prompt if isinstance(prompt, dict) else {"messages": prompt}
    body = {**known_fields(row.value, APIS["chat"]), **body}
    body.pop("input", None)
    yield request_of(
        row,
        body,
        api=APIS["chat"],
        time=parse_time(row.value.get("createdAt")),
        response=chat_response(answer),
        labels=labels_of(row.value, body),
    )


class _OpenPipe(LogFormat):
    def missing(self, value: JsonObject) -> list[str]:
        lacking = LogFormat.missing(self, value)
        prompt = decoded(value.get("input"))
        turns = objects(field(prompt, "messages") if isinstance(prompt, dict) else prompt)
        if isinstance(value.get("output"), list) or "instructions" in value:
            return [*lacking, "a message or a text as output"]
        return lacking if turns and "role" in turns[0] else [*lacking, "messages in input"]


FORMATS = (
    LogFormat(
        "langfuse",
        "Langfuse export",
        ("input", "traceId|trace_id", "startTime|start_time|type"),
        _read_langfuse,
        costs=("costDetails.total", "cost_details.total", "totalCost", "total_cost", "calculatedTotalCost"),
    ),
    _OpenPipe("openpipe", "OpenPipe export", ("input", "output"), _read_openpipe),
)
