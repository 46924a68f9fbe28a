"""Spans of generative AI: OpenTelemetry's conventions, and those of OpenLLMetry and OpenInference (Phoenix)."""

from collections.abc import Iterator
from typing import Any

from kvproxy.analyse.log_formats.json_texts import decoded, decoded_object
from kvproxy.analyse.log_formats.labels import labels_of
from kvproxy.analyse.log_formats.log_format import (
    LogFormat,
    LoggedRequest,
    Row,
    chat_response,
    detect_api,
    first_of,
    request_of,
)
from kvproxy.analyse.log_formats.log_times import parse_time, seconds_between
from kvproxy.apis import APIS
from kvproxy.apis.json import Json, JsonObject, as_token_count, field, objects

_OPERATIONS = ("chat", "completion", "text_completion", "generate_content", "LLM")
# The whole prompt and response, and their parts of the provider's cache, in OpenTelemetry, OpenLLMetry, and OpenInference.
_PROMPT = "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"
_COMPLETION = "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"
_CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
)
_WRITTEN = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "llm.token_count.prompt_details.cache_write",
)

_TIERS = "openai.response.service_tier", "gen_ai.openai.response.service_tier"


def _read_span(row: Row) -> Iterator[LoggedRequest]:
    for span, resource in _spans(row.value):
        attributes = _attributes(span)
        operation = _first(
            attributes, "gen_ai.operation.name", "llm.request.type", "openinference.span.kind", default="chat"
        )
        messages = _messages(attributes, "gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages")
        if not messages or operation not in _OPERATIONS:
            continue
        system = decoded(attributes.get("gen_ai.system_instructions"))
        if system:
            text = "\n".join(str(part.get("content", "")) for part in objects(system)) or str(system)
            messages.insert(0, {"role": "system", "content": text})
        body: JsonObject = {"model": _first(attributes, "gen_ai.request.model", "llm.model_name"), "messages": messages}
        given = decoded_object(attributes.get("llm.invocation_parameters")) or {}
        for name in ("temperature", "top_p", "max_tokens", "seed"):
            if (value := attributes.get(f"gen_ai.request.{name}", given.get(name))) is not None:
                body[name] = value
        if tools := decoded(attributes.get("gen_ai.tool.definitions")) or _openinference_tools(attributes):
            body["tools"] = tools
        output = _messages(attributes, "gen_ai.output.messages", "gen_ai.completion", "llm.output_messages")
        start = parse_time(first_of(span, "startTimeUnixNano", "start_time", "startTime"))
        end = parse_time(first_of(span, "endTimeUnixNano", "end_time", "endTime"))
        yield request_of(
            row,
            body,
            api=APIS[detect_api(body) or "chat"],
            time=start,
            response=_with_usage(chat_response(output), attributes),
            seconds=seconds_between(start, end),
            labels=labels_of(attributes, resource),
        )


def _spans(value: JsonObject) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yield the spans of a row, and the attributes of their resources."""
    if "resourceSpans" not in value:
        yield value, _attributes(_object(value.get("resource")))
    for group in objects(value.get("resourceSpans")):
        resource = _attributes(_object(group.get("resource")))
        for scope in objects(group.get("scopeSpans")):
            for span in objects(scope.get("spans")):
                yield span, resource


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _attributes(span: JsonObject) -> dict[str, Any]:
    """Return the attributes of a span by dotted names; they are OTLP's list of typed values, or a nested or flat object."""
    attributes = span.get("attributes")
    if isinstance(attributes, dict):
        return dict(_flattened(attributes, ""))
    return {str(item.get("key")): _otlp_value(item.get("value")) for item in objects(attributes)}


def _flattened(value: Json, name: str) -> Iterator[tuple[str, Json]]:
    """Yield all values with their dotted names, and lists also as they are, which messages may be."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flattened(inner, f"{name}.{key}" if name else key)
        return
    yield name, value
    if isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _flattened(inner, f"{name}.{at}")


def _otlp_value(value: Json) -> Json:
    for kind in ("stringValue", "doubleValue", "boolValue"):
        if (scalar := field(value, kind)) is not None:
            return scalar
    if (number := field(value, "intValue")) is not None:
        return int(str(number))
    return [_otlp_value(item) for item in objects(field(field(value, "arrayValue"), "values"))]


def _first(attributes: dict[str, Any], *names: str, default: Any = None) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), default)


def _with_usage(response: JsonObject | str | None, attributes: dict[str, Any]) -> JsonObject | str | None:
    """Return a response with the usage of its span. All conventions count cached tokens as a part of the prompt."""
    prompt, completion, cached, written = (
        as_token_count(_first(attributes, *names)) for names in (_PROMPT, _COMPLETION, _CACHED, _WRITTEN)
    )
    if not isinstance(response, dict) or "usage" in response or prompt is None:
        return response
    usage: JsonObject = {"prompt_tokens": prompt, "completion_tokens": completion}
    details: JsonObject = {} if cached is None and written is None else {"cached_tokens": cached or 0}
    # Not each provider reports its writes.
    if written is not None:
        details["cache_write_tokens"] = written
    if audio := as_token_count(attributes.get("llm.token_count.prompt_details.audio")):
        details["audio_tokens"] = audio
    if details:
        usage["prompt_tokens_details"] = details
    if spoken := as_token_count(attributes.get("llm.token_count.completion_details.audio")):
        usage["completion_tokens_details"] = {"audio_tokens": spoken}
    tier = _first(attributes, *_TIERS)
    return {**response, "usage": usage} | ({} if tier is None else {"service_tier": tier})


def _messages(attributes: dict[str, Any], current: str, openllmetry: str, openinference: str) -> list[Json]:
    """Return messages from one attribute, or from numbered ones such as `gen_ai.prompt.0.content`."""
    current_messages = objects(decoded(attributes.get(current)))
    if current_messages:
        return [_message_of_parts(turn) for turn in current_messages]
    messages: list[Json] = []
    while (role := attributes.get(f"{openllmetry}.{len(messages)}.role")) is not None:
        at = f"{openllmetry}.{len(messages)}"
        messages.append(_numbered_message(attributes, at, role, "id", "name", "arguments"))
    while (role := attributes.get(f"{openinference}.{len(messages)}.message.role")) is not None:
        at = f"{openinference}.{len(messages)}.message"
        names = "tool_call.id", "tool_call.function.name", "tool_call.function.arguments"
        messages.append(_numbered_message(attributes, at, role, *names))
    return messages


def _numbered_message(
    attributes: dict[str, Any], at: str, role: Json, id: str, name: str, arguments: str
) -> JsonObject:
    content = decoded(attributes.get(f"{at}.content"))
    texts: list[str] = []
    while (text := attributes.get(f"{at}.contents.{len(texts)}.message_content.text")) is not None:
        texts.append(str(text))
    message: JsonObject = {"role": role, "content": "\n".join(texts) if content is None and texts else content}
    calls: list[Json] = []
    while (called := attributes.get(f"{at}.tool_calls.{len(calls)}.{name}")) is not None:
        call = f"{at}.tool_calls.{len(calls)}"
        function = {"name": called, "arguments": attributes.get(f"{call}.{arguments}", "{}")}
        calls.append({"id": attributes.get(f"{call}.{id}"), "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
    if (answered := attributes.get(f"{at}.tool_call_id")) is not None:
        message["tool_call_id"] = answered
    return message


def _openinference_tools(attributes: dict[str, Any]) -> list[Json]:
    tools: list[Json] = []
    while (tool := decoded_object(attributes.get(f"llm.tools.{len(tools)}.tool.json_schema"))) is not None:
        tools.append(tool)
    return tools


def _message_of_parts(message: JsonObject) -> JsonObject:
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


class _Spans(LogFormat):
    def missing(self, value: JsonObject) -> list[str]:
        if "resourceSpans" in value:
            return []
        names = _attributes(value)
        return [] if any(name.startswith(("gen_ai.", "llm.")) for name in names) else ["attributes gen_ai.*"]


FORMATS = (_Spans("otel", "OpenTelemetry spans", ("attributes|resourceSpans",), _read_span),)
