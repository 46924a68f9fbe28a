"""Reports of usage: the tables of OpenAI, Anthropic, OpenRouter, and others, and the admin APIs (JSON)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvproxy.analyse.log_formats.amounts import read_amount
from kvproxy.analyse.log_formats.counts import is_unreadable, read_count
from kvproxy.analyse.log_formats.fact_columns import (
    COSTS,
    INPUT,
    MODELS,
    OUTPUT,
    REQUESTS,
    currency_of,
    fact_headings,
    facts_of,
    has_date_only,
    model_of,
    period_of,
    row_headings,
    time_of,
    token_counts,
    unreadable_columns,
)
from kvproxy.analyse.log_formats.labels import labels_of
from kvproxy.analyse.log_formats.log_format import (
    Assumption,
    LogFormat,
    LoggedRequest,
    Row,
    SkipRow,
    SummedUsage,
    first_of,
)
from kvproxy.analyse.log_formats.log_times import is_date, parse_time, seconds_between
from kvproxy.analyse.log_formats.logged_costs import logged_cost
from kvproxy.analyse.log_formats.periods import Unit, read_period
from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.json import Json, JsonObject, field, objects
from kvproxy.apis.modalities import modalities_text
from kvproxy.apis.service_tiers import BATCH
from kvproxy.errors import InvalidRequest

USAGE_TABLE = "usage-table"
MODALITIES = {
    f"{kind}_{modality}_tokens": (kind, modality) for kind in ("input", "output") for modality in ("audio", "image")
}
"""Columns of audio and image tokens, as OpenAI names them, with their kinds and modalities."""
EXTRA_COLUMNS = {"end_time", "service_tier", "batch", "variant", "cost_micro_cents", *MODALITIES}
"""Columns of a usage table beside those of `fact_columns.py`."""
_LONG_CONTEXT = 200_001
"""A prompt with the price of Anthropic's long context."""
_LONG_WINDOWS = "200k", ">"
LONGEST_PROMPT = 2_097_152
"""Tokens of the longest prompt of a model whose long prompts cost more."""
_DAY = 86_400.0
_SUMS = frozenset(("total", "totals", "grand total", "subtotal", "sum"))
"""Labels of rows that are the sum of others; `sum_rows.py` finds such rows in other languages."""
OF_SUMS = "of sums"
"""Cause to skip such a row."""


def _refuse_usage(row: Row) -> Iterator[LoggedRequest]:
    raise InvalidRequest("this is a report of usage, which has no requests: kvproxy estimate lists its cost")


def _refuse_usage_table(row: Row) -> Iterator[LoggedRequest]:
    raise InvalidRequest(
        "this is a table of usage without prompts: kvproxy estimate lists its cost; if a column has questions,"
        " name it with --column"
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
    # A period without requests is a row with its times only.
    if any(row.value.get(name) for name in ("num_model_requests", "input_tokens", "output_tokens")):
        yield _openai_request(row, row.value, row.value)


def _openai_request(row: Row, value: JsonObject, bucket: JsonObject) -> LoggedRequest:
    prompt, completion, cached, written, requests = (
        _count(value, name)
        for name in (
            "input_tokens",
            "output_tokens",
            "input_cached_tokens",
            "input_cache_write_tokens",
            "num_model_requests",
        )
    )
    prompt, completion = _with_modalities(value, prompt, "input"), _with_modalities(value, completion, "output")
    _check_cached(prompt, cached)
    api: ApiName = "embeddings" if "embeddings" in str(value.get("object")) else "chat"
    if api == "embeddings":
        completion = 0
    start, end = parse_time(bucket.get("start_time")), parse_time(bucket.get("end_time"))
    period = seconds_between(start, end)
    return LoggedRequest(
        row.number,
        APIS[api],
        {"model": value.get("model") or row.model},
        time=start,
        response={"service_tier": value.get("service_tier")},
        project=_name(value, "project_name", "project_id"),
        client=_name(value, "api_key_name", "api_key_id", "user_email", "user_id"),
        names_model=bool(value.get("model")),
        processing=_batch(value),
        provider="openai",
        summed=SummedUsage(
            requests,
            prompt,
            completion,
            cached,
            written,
            seconds=period,
            modalities=_modalities(value, prompt, cached, completion),
        ),
    )


def _read_anthropic_page(row: Row) -> Iterator[LoggedRequest]:
    for bucket in _buckets(row.value):
        start, end = parse_time(bucket.get("starting_at")), parse_time(bucket.get("ending_at"))
        for result in objects(bucket.get("results")):
            yield _anthropic_request(row, result, start, seconds_between(start, end))


def _read_anthropic_row(row: Row) -> Iterator[LoggedRequest]:
    """Read a row of the CSV of Anthropic's console."""
    value = row.value
    short = first_of(value, "usage_input_tokens_cache_write_5m", "usage_input_tokens_cache_write")
    result: JsonObject = {
        "uncached_input_tokens": value.get("usage_input_tokens_no_cache"),
        "cache_read_input_tokens": value.get("usage_input_tokens_cache_read"),
        "cache_creation": {
            "ephemeral_5m_input_tokens": short,
            "ephemeral_1h_input_tokens": value.get("usage_input_tokens_cache_write_1h"),
        },
        "output_tokens": value.get("usage_output_tokens"),
        "context_window": value.get("context_window"),
        "service_tier": value.get("usage_type"),
        "speed": value.get("speed"),
        "inference_geo": value.get("inference_geo"),
        "server_tool_use": {"web_search_requests": value.get("web_search_count")},
        "model": value.get("model_version"),
        "workspace_id": value.get("workspace"),
        "api_key_id": value.get("api_key"),
    }
    date = value.get("usage_date_utc")
    yield _anthropic_request(row, result, parse_time(date), _DAY if is_date(date) else 0.0)


def _anthropic_request(row: Row, result: JsonObject, start: float | None, period: float) -> LoggedRequest:
    uncached, read, output = (
        _count(result, name) for name in ("uncached_input_tokens", "cache_read_input_tokens", "output_tokens")
    )
    short, hour = (
        _count(result.get("cache_creation"), name)
        for name in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
    )
    prompt = None if uncached is None else uncached + sum(filter(None, (read, short, hour)))
    usage: JsonObject = {name: result.get(name) for name in ("speed", "inference_geo", "server_tool_use")}
    window = result.get("context_window")
    is_long = str(window).startswith(_LONG_WINDOWS)
    return LoggedRequest(
        row.number,
        APIS["messages"],
        {"model": result.get("model") or row.model},
        time=start,
        response={"service_tier": result.get("service_tier"), "usage": usage},
        project=_name(result, "workspace_id"),
        client=_name(result, "api_key_id", "account_id"),
        names_model=bool(result.get("model")),
        provider="anthropic",
        summed=SummedUsage(
            None,
            prompt,
            output,
            read,
            short,
            hour,
            period,
            _LONG_CONTEXT if is_long else 0,
            assumption=None if window else "short prompts",
        ),
    )


def _read_ccusage_row(row: Row) -> Iterator[LoggedRequest]:
    """Read the models of a day, a week, a month, or a session; ccusage counts all writes as those for five minutes."""
    value = row.value
    names: tuple[Unit, ...] = "day", "week", "month"
    unit: Unit = next((name for name in names if value.get(name)), "day")
    date = first_of(value, "date", unit, "lastActivity")
    period = read_period(date, unit)
    for used in objects(value.get("modelBreakdowns")):
        uncached, written, read, output = (
            _count(used, f"{name}Tokens") for name in ("input", "cacheCreation", "cacheRead", "output")
        )
        prompt = None if uncached is None else uncached + (written or 0) + (read or 0)
        yield LoggedRequest(
            row.number,
            APIS["messages"],
            {"model": used.get("modelName") or row.model},
            time=parse_time(date) if period is None else period.start,
            project=_name(value, "project", "projectPath"),
            names_model=bool(used.get("modelName")),
            cost=read_amount(used.get("cost")) or None,
            summed=SummedUsage(
                None,
                prompt,
                output,
                read,
                written,
                seconds=_DAY if period is None else period.seconds,
                priced_length=0,
                is_of_local_day=True,
                assumption="short prompts",
            ),
        )


def _read_table_row(row: Row) -> Iterator[LoggedRequest]:
    """Read a row of a table with a request, or with the sum of several.

    A row of a day or a longer period, a row with a number of requests, and a row with more tokens than a prompt can have is a
    sum; another one is a request.
    """
    value, headings = row.value, row_headings(row.value)
    if any(isinstance(cell, str) and cell.strip().casefold().rstrip(":") in _SUMS for cell in value.values()):
        raise SkipRow(OF_SUMS)
    facts = facts_of(value, headings)
    if value.get("variant") == "free" and facts.get("model_permaslug"):
        # OpenRouter's free variant of a model has no list price.
        facts["model_permaslug"] = f"{facts['model_permaslug']}:free"
    tokens, labels, model, time = token_counts(facts), labels_of(facts), model_of(facts), time_of(facts)
    _check_cached(tokens.prompt, tokens.cached)
    period, counted = period_of(facts), first_of(facts, *REQUESTS)
    is_sum = counted is not None or has_date_only(facts) or (tokens.prompt or 0) > LONGEST_PROMPT
    requests = read_count(counted) if is_sum else 1
    has_unknown_length = requests is None or (tokens.prompt or 0) > requests * LONGEST_PROMPT
    assumption: Assumption | None = "short prompts" if has_unknown_length else None
    if not is_sum and time is None:
        assumption = "one request"
    is_embedding = "embed" in model.lower()
    yield LoggedRequest(
        row.number,
        APIS["embeddings" if is_embedding else "chat"],
        {"model": model or row.model},
        time=time,
        response={"service_tier": value.get("service_tier")},
        project=labels.project,
        client=labels.client,
        team=labels.team,
        names_model=bool(model),
        processing=_batch(value),
        unreadable=unreadable_columns(value, headings),
        cost=logged_cost(facts, COSTS, None),
        currency=currency_of(facts),
        summed=SummedUsage(
            requests,
            tokens.prompt,
            0 if is_embedding else tokens.completion,
            tokens.cached,
            tokens.written,
            tokens.written_1h,
            seconds=seconds_between(time, parse_time(value.get("end_time"))) if period is None else period.seconds,
            priced_length=0 if has_unknown_length else None,
            modalities=_modalities(value, tokens.prompt, tokens.cached, tokens.completion),
            assumption=assumption,
        ),
    )


def with_assumed_sums(requests: Sequence[LoggedRequest]) -> list[LoggedRequest]:
    """Return the rows of a table, in which each one without a date and a number is a sum if another row is one."""
    usages = [request.summed for request in requests]
    if not any(usage is not None and usage.requests != 1 for usage in usages):
        return list(requests)
    return [
        request
        if usage is None or usage.assumption != "one request"
        else replace(request, summed=replace(usage, requests=None, priced_length=0, assumption="short prompts"))
        for request, usage in zip(requests, usages, strict=True)
    ]


def _check_cached(prompt: int | None, cached: int | None) -> None:
    if prompt is not None and cached is not None and cached > prompt:
        raise InvalidRequest(f"{cached:,} cached tokens are more than the {prompt:,} input tokens")


def _modalities(value: JsonObject, prompt: int | None, cached: int | None, completion: int | None) -> str | None:
    return modalities_text(_counts_of_modalities(value), prompt or 0, cached or 0, completion or 0)


def _counts_of_modalities(value: JsonObject) -> dict[tuple[str, str], int]:
    return {key: count for column, key in MODALITIES.items() if (count := _count(value, column))}


def _with_modalities(value: JsonObject, tokens: int | None, kind: str) -> int | None:
    """Return all tokens of a kind: audio and images are among `tokens`, unless they are more."""
    beside = sum(count for (counted, _), count in _counts_of_modalities(value).items() if counted == kind)
    return tokens + beside if tokens is not None and beside > tokens else tokens


def _batch(value: JsonObject) -> str | None:
    return BATCH if str(value.get("batch")).lower() == "true" else None


def _count(value: Json, name: str) -> int | None:
    """Return a count, which is a text in a table; None if it is empty. Raises InvalidRequest."""
    if is_unreadable(cell := field(value, name)):
        raise InvalidRequest(f"unreadable {name}: {cell!r}")
    return read_count(cell)


def _name(value: JsonObject, *names: str) -> str:
    return next((str(value[name]) for name in names if value.get(name)), "")


class _UsageTable(LogFormat):
    def missing(self, value: JsonObject) -> list[str]:
        known = set(fact_headings(value).values())
        columns = {"model": MODELS, "input tokens": INPUT, "output tokens": OUTPUT}
        return [name for name, facts in columns.items() if known.isdisjoint(facts)]


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
    LogFormat(
        "anthropic-usage",
        "report of Anthropic's usage",
        ("usage_date_utc", "usage_input_tokens_no_cache", "usage_output_tokens"),
        _refuse_usage,
        has_requests=False,
        read_usage=_read_anthropic_row,
    ),
    LogFormat(
        "ccusage",
        "report of ccusage",
        ("modelBreakdowns", "totalCost", "date|week|month|lastActivity"),
        _refuse_usage,
        has_requests=False,
        read_usage=_read_ccusage_row,
    ),
)
TABLES = (
    _UsageTable(
        USAGE_TABLE,
        "usage without prompts",
        ("model", "input_tokens", "output_tokens"),
        _refuse_usage_table,
        has_requests=False,
        read_usage=_read_table_row,
    ),
)
"""Formats of rows that no other format matches."""
