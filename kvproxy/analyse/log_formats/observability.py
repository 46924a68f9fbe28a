"""Exports of observability tools: Langfuse, OpenPipe, and OpenTelemetry's spans of generative AI."""

import re
from collections.abc import Iterator
from typing import Any

from kvproxy.analyse.log_formats.log_format import (
    LogFormat,
    LoggedRequest,
    Row,
    SkipRow,
    chat_response,
    decoded,
    decoded_object,
    detect_api,
    first_of,
    is_failed,
    known_fields,
    parse_time,
    request_of,
    seconds_between,
)
from kvproxy.apis import APIS
from kvproxy.apis.json import Json, JsonObject, as_token_count, field, objects
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
    written = sum(count for name, count in prompt.items() if _CACHE_WRITE.search(name))
    cached = sum(count for name, count in prompt.items() if "cache" in name and not _CACHE_WRITE.search(name))
    sums = sum(prompt.values()), sum(output.values())
    total, whole = _count(counts.get("total")), (prompt.get("input", 0), output.get("output", 0))
    if total is not None and total == sum(whole) != sum(sums):
        # The sender counted the other kinds as parts of these two.
        sums = whole
    reported: JsonObject = {"prompt_tokens": sums[0], "completion_tokens": sums[1]}
    if any("cache" in name for name in prompt):
        reported["prompt_tokens_details"] = {"cached_tokens": cached, "cache_write_tokens": written}
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
        row, body, api=APIS["chat"], time=parse_time(row.value.get("createdAt")), response=chat_response(answer)
    )


class _OpenPipe(LogFormat):
    def missing(self, value: JsonObject) -> list[str]:
        lacking = LogFormat.missing(self, value)
        prompt = decoded(value.get("input"))
        turns = objects(field(prompt, "messages") if isinstance(prompt, dict) else prompt)
        if isinstance(value.get("output"), list) or "instructions" in value:
            return [*lacking, "a message or a text as output"]
        return lacking if turns and "role" in turns[0] else [*lacking, "messages in input"]


def _attributes(span: JsonObject) -> dict[str, Any]:
    """Return the attributes of a span, in OTLP's form (a list of keys and typed values) or as an object."""
    attributes = span.get("attributes")
    if isinstance(attributes, dict):
        return attributes
    return {str(item.get("key")): _otlp_value(item.get("value")) for item in objects(attributes)}


def _otlp_value(value: Json) -> Json:
    for kind in ("stringValue", "doubleValue", "boolValue"):
        if (scalar := field(value, kind)) is not None:
            return scalar
    if (number := field(value, "intValue")) is not None:
        return int(str(number))
    return [_otlp_value(item) for item in objects(field(field(value, "arrayValue"), "values"))]


def _span_messages(attributes: dict[str, Any], current: str, legacy: str) -> list[Json]:
    """Return messages from `gen_ai.input.messages`, or from numbered attributes such as `gen_ai.prompt.0.content`."""
    current_messages = objects(decoded(attributes.get(current)))
    if current_messages:
        return [_span_message(turn) for turn in current_messages]
    messages: list[Json] = []
    while (role := attributes.get(f"{legacy}.{len(messages)}.role")) is not None:
        at = f"{legacy}.{len(messages)}"
        message: JsonObject = {"role": role, "content": decoded(attributes.get(f"{at}.content"))}
        calls: list[Json] = []
        while (name := attributes.get(f"{at}.tool_calls.{len(calls)}.name")) is not None:
            call = f"{at}.tool_calls.{len(calls)}"
            function = {"name": name, "arguments": attributes.get(f"{call}.arguments", "{}")}
            calls.append({"id": attributes.get(f"{call}.id"), "type": "function", "function": function})
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
    return messages


def _span_message(message: JsonObject) -> JsonObject:
    if "parts" not in message:
        return message
    texts: list[str] = []
    calls: list[Json] = []
    converted: JsonObject = {"role": message.get("role")}
    for part in objects(message["parts"]):
        match part.get("type"):
            case "text":
                texts.append(str(part.get("content", "")))
            case "tool_call":
                function: JsonObject = {"name": part.get("name"), "arguments": part.get("arguments")}
                calls.append({"id": part.get("id"), "type": "function", "function": function})
            case "tool_call_response":
                converted["tool_call_id"] = part.get("id")
                texts.append(str(first_of(part, "response", "result") or ""))
    converted["content"] = "\n".join(texts)
    return converted | ({"tool_calls": calls} if calls else {})


def _read_span(row: Row) -> Iterator[LoggedRequest]:
    for span in _spans(row.value):
        attributes = _attributes(span)
        operation = attributes.get("gen_ai.operation.name", attributes.get("llm.request.type", "chat"))
        messages = _span_messages(attributes, "gen_ai.input.messages", "gen_ai.prompt")
        if not messages or operation not in ("chat", "completion", "text_completion", "generate_content"):
            continue
        system = decoded(attributes.get("gen_ai.system_instructions"))
        if system:
            text = "\n".join(str(part.get("content", "")) for part in objects(system)) or str(system)
            messages.insert(0, {"role": "system", "content": text})
        body: JsonObject = {"model": attributes.get("gen_ai.request.model"), "messages": messages}
        for name in ("temperature", "top_p", "max_tokens", "seed"):
            if (given := attributes.get(f"gen_ai.request.{name}")) is not None:
                body[name] = given
        if tools := decoded(attributes.get("gen_ai.tool.definitions")):
            body["tools"] = tools
        output = _span_messages(attributes, "gen_ai.output.messages", "gen_ai.completion")
        start = parse_time(first_of(span, "startTimeUnixNano", "start_time", "startTime"))
        end = parse_time(first_of(span, "endTimeUnixNano", "end_time", "endTime"))
        yield request_of(
            row,
            body,
            api=APIS[detect_api(body) or "chat"],
            time=start,
            response=chat_response(output),
            seconds=seconds_between(start, end),
        )


def _spans(value: JsonObject) -> Iterator[JsonObject]:
    if "resourceSpans" not in value:
        yield value
    for resource in objects(value.get("resourceSpans")):
        for scope in objects(resource.get("scopeSpans")):
            yield from objects(scope.get("spans"))


class _Spans(LogFormat):
    def missing(self, value: JsonObject) -> list[str]:
        if "resourceSpans" in value:
            return []
        names = _attributes(value)
        return [] if any(name.startswith(("gen_ai.", "llm.")) for name in names) else ["attributes gen_ai.*"]


FORMATS = (
    _Spans("otel", "OpenTelemetry spans", ("attributes|resourceSpans",), _read_span),
    LogFormat(
        "langfuse", "Langfuse export", ("input", "traceId|trace_id", "startTime|start_time|type"), _read_langfuse
    ),
    _OpenPipe("openpipe", "OpenPipe export", ("input", "output"), _read_openpipe),
)
