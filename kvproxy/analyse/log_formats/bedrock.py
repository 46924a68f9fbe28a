"""Logs of model invocations of Amazon Bedrock, as S3 and CloudWatch have them."""

from collections.abc import Iterator
from dataclasses import replace

from kvproxy.analyse.log_formats.counts import read_count
from kvproxy.analyse.log_formats.json_texts import decoded_object
from kvproxy.analyse.log_formats.labels import Labels, labels_of
from kvproxy.analyse.log_formats.log_format import LogFormat, LoggedRequest, Row, SkipRow, SummedUsage, request_of
from kvproxy.analyse.log_formats.log_times import parse_time
from kvproxy.apis import APIS
from kvproxy.apis.json import Json, JsonObject, field, objects
from kvproxy.errors import InvalidRequest

_SETTINGS = {
    "maxTokens": "max_tokens",
    "temperature": "temperature",
    "topP": "top_p",
    "stopSequences": "stop_sequences",
}
"""Names in Converse's `inferenceConfig`, and in the Messages API."""


def _read_request(row: Row) -> Iterator[LoggedRequest]:
    usage = _read_for_bill(row)
    messages = _messages_body(decoded_object(field(row.value["input"], "inputBodyJson")) or {})
    if messages is None:
        raise InvalidRequest(
            "the prompt has no text in the form of Anthropic's API or of Converse; kvproxy estimate lists its cost"
        )
    request = request_of(row, messages | {"model": usage.body["model"]}, api=APIS["messages"], time=usage.time)
    yield replace(request, project=usage.project, client=usage.client, team=usage.team, usage=usage.usage)


def _read_usage(row: Row) -> Iterator[LoggedRequest]:
    yield _read_for_bill(row)


def _read_for_bill(row: Row) -> LoggedRequest:
    """Return a request without its prompt."""
    value = row.value
    if value.get("errorCode"):
        raise SkipRow("failed")
    given = value["input"]
    uncached, read, written = (
        read_count(field(given, name))
        for name in ("inputTokenCount", "cacheReadInputTokenCount", "cacheWriteInputTokenCount")
    )
    prompt = None if uncached is None else uncached + (read or 0) + (written or 0)
    labels = _labels(value)
    return LoggedRequest(
        row.number,
        APIS["messages"],
        # The identifier of an inference profile ends an ARN.
        {"model": f"bedrock/{str(value['modelId']).rpartition('/')[2]}"},
        time=parse_time(value.get("timestamp")),
        project=labels.project,
        client=labels.client,
        team=labels.team,
        usage=SummedUsage(1, prompt, read_count(field(value.get("output"), "outputTokenCount")), read, written),
    )


def _labels(value: JsonObject) -> Labels:
    """Return the labels in the metadata of a request; the name of the role, session, or user is the client without one."""
    labels = labels_of(decoded_object(value.get("requestMetadata")) or {})
    arn = str(field(value.get("identity"), "arn") or "")
    return replace(labels, client=labels.client or arn.partition("/")[2])


def _messages_body(body: JsonObject) -> JsonObject | None:
    """Return the body of an Anthropic model, or one of Converse with text only, in the form of the Messages API; else None."""
    if "anthropic_version" in body:
        return {name: value for name, value in body.items() if name not in ("anthropic_version", "anthropic_beta")}
    contents = [_texts(message.get("content")) for message in objects(body.get("messages"))]
    system = _texts(body.get("system") or [])
    if not contents or system is None or None in contents:
        return None
    messages: list[Json] = [
        message | {"content": texts} for message, texts in zip(objects(body["messages"]), contents, strict=True)
    ]
    given = field(body, "inferenceConfig")
    settings = {name: given[own] for own, name in _SETTINGS.items() if isinstance(given, dict) and own in given}
    return {"messages": messages, **({"system": system} if system else {}), **settings}


def _texts(parts: Json) -> list[Json] | None:
    """Return the text blocks of Converse's content, without its marks of the cache; None if it has other blocks."""
    blocks = [block for block in objects(parts) if "cachePoint" not in block]
    has_others = not isinstance(parts, list) or any(not isinstance(block.get("text"), str) for block in blocks)
    return None if has_others else [{"type": "text", "text": block["text"]} for block in blocks]


FORMATS = (
    LogFormat(
        "bedrock",
        "model invocations of Amazon Bedrock",
        ("modelId", "input.inputContentType|input.inputTokenCount", "schemaType|requestId"),
        _read_request,
        read_usage=_read_usage,
    ),
)
