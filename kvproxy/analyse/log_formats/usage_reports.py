"""Reports of usage: the dashboard of OpenAI (CSV), and the admin APIs of OpenAI and Anthropic (JSON)."""

from collections.abc import Iterator

from kvproxy.analyse.log_formats.log_format import (
    LogFormat,
    LoggedRequest,
    Row,
    SummedUsage,
    parse_time,
    seconds_between,
)
from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.json import Json, JsonObject, field, objects
from kvproxy.apis.service_tiers import BATCH
from kvproxy.errors import InvalidRequest

_LONG_CONTEXT = 200_001
"""A prompt with the price of Anthropic's long context."""


def _refuse_usage(row: Row) -> Iterator[LoggedRequest]:
    raise InvalidRequest(
        "this is a report of usage, which has no requests: estimate --sessions --by reads it for a bill"
    )


def _buckets(value: JsonObject) -> list[JsonObject]:
    """Return the periods of a page of an admin API, or the only one of a row."""
    pages = objects(value.get("data"))
    return list(pages) if pages else [value]


def _read_openai_page(row: Row) -> Iterator[LoggedRequest]:
    for bucket in _buckets(row.value):
        for result in objects(bucket.get("results")):
            yield _openai_request(row, result, bucket)


def _read_openai_row(row: Row) -> Iterator[LoggedRequest]:
    yield _openai_request(row, row.value, row.value)


def _openai_request(row: Row, value: JsonObject, bucket: JsonObject) -> LoggedRequest:
    prompt, completion, cached, requests = (
        _count(value, name) for name in ("input_tokens", "output_tokens", "input_cached_tokens", "num_model_requests")
    )
    usage: JsonObject = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    api: ApiName = "embeddings" if "embeddings" in str(value.get("object")) else "chat"
    start, end = parse_time(bucket.get("start_time")), parse_time(bucket.get("end_time"))
    return LoggedRequest(
        row.number,
        APIS[api],
        {"model": value.get("model") or row.model},
        time=start,
        response={"usage": usage, "service_tier": value.get("service_tier")},
        project=_name(value, "project_name", "project_id"),
        client=_name(value, "user_email", "user_id", "api_key_name", "api_key_id"),
        names_model=bool(value.get("model")),
        processing=BATCH if str(value.get("batch")).lower() == "true" else None,
        summed=SummedUsage(requests, seconds_between(start, end)),
    )


def _read_anthropic_page(row: Row) -> Iterator[LoggedRequest]:
    for bucket in _buckets(row.value):
        start, end = parse_time(bucket.get("starting_at")), parse_time(bucket.get("ending_at"))
        for result in objects(bucket.get("results")):
            tier = result.get("service_tier")
            length = _LONG_CONTEXT if result.get("context_window") == "200k-1M" else 0
            yield LoggedRequest(
                row.number,
                APIS["messages"],
                {"model": result.get("model") or row.model},
                time=start,
                response={"usage": _anthropic_usage(result)},
                project=_name(result, "workspace_id"),
                client=_name(result, "api_key_id", "account_id"),
                names_model=bool(result.get("model")),
                processing=BATCH if tier == "batch" else None,
                summed=SummedUsage(None, seconds_between(start, end), length),
            )


def _anthropic_usage(result: JsonObject) -> JsonObject:
    """Return the usage in the form of the Messages API."""
    writes = result.get("cache_creation")
    lifetimes: JsonObject = {
        name: _count(writes, name) or 0 for name in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
    }
    return {
        "input_tokens": _count(result, "uncached_input_tokens"),
        "output_tokens": _count(result, "output_tokens"),
        "cache_read_input_tokens": _count(result, "cache_read_input_tokens") or 0,
        "cache_creation_input_tokens": sum(int(str(count)) for count in lifetimes.values()),
        "cache_creation": lifetimes,
        "service_tier": result.get("service_tier"),
    }


def _count(value: Json, name: str) -> int | None:
    """Return a count, which is a text in a table; None if it is empty. Raises ValueError."""
    count = field(value, name)
    return None if count is None else int(str(count))


def _name(value: JsonObject, *names: str) -> str:
    return next((str(value[name]) for name in names if value.get(name)), "")


class _Pages(LogFormat):
    """Pages of an admin API, whose periods have `results`."""

    def missing(self, value: JsonObject) -> list[str]:
        return min((LogFormat.missing(self, bucket) for bucket in _buckets(value)), key=len)


FORMATS = (
    LogFormat(
        "openai-usage",
        "report of OpenAI's usage",
        ("num_model_requests", "input_tokens"),
        _refuse_usage,
        has_requests=False,
        read_usage=_read_openai_row,
    ),
    _Pages(
        "openai-usage",
        "report of OpenAI's usage",
        ("start_time", "end_time", "results"),
        _refuse_usage,
        has_requests=False,
        read_usage=_read_openai_page,
    ),
    _Pages(
        "anthropic-usage",
        "report of Anthropic's usage",
        ("starting_at", "ending_at", "results"),
        _refuse_usage,
        has_requests=False,
        read_usage=_read_anthropic_page,
    ),
)
