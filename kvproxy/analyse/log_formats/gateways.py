"""Logs of gateways: LiteLLM, Helicone, Portkey, and Bifrost."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from kvproxy.analyse.log_formats.counts import read_count
from kvproxy.analyse.log_formats.fact_columns import token_counts
from kvproxy.analyse.log_formats.json_texts import decoded, decoded_object
from kvproxy.analyse.log_formats.labels import Labels, labels_of
from kvproxy.analyse.log_formats.log_format import (
    ANSWERED_BY_CACHE,
    PROMPT_FIELDS,
    LogFormat,
    LoggedRequest,
    Row,
    SkipRow,
    SummedUsage,
    api_of_route,
    chat_response,
    decoded_response,
    first_of,
    is_cache_hit,
    is_failed,
    known_fields,
    request_of,
)
from kvproxy.analyse.log_formats.log_times import parse_time, seconds_between, seconds_of
from kvproxy.apis import APIS
from kvproxy.apis.api import Api
from kvproxy.apis.json import Json, JsonObject, field, objects
from kvproxy.errors import InvalidRequest
from kvproxy.providers.cache_rules import cache_rule
from kvproxy.providers.model_names import split_host

# LiteLLM's names of its functions; an `a` before them is the asynchronous one.
_LITELLM_CALLS = {
    "completion": "chat",
    "text_completion": "completions",
    "embedding": "embeddings",
    "responses": "responses",
    "anthropic_messages": "messages",
}
_LITELLM_PROVIDERS = (
    "anthropic",
    "openai",
    "azure",
    "azure_ai",
    "bedrock",
    "vertex_ai",
    "gemini",
    "openrouter",
    "deepseek",
)

_ENGINES = frozenset(
    "hosted_vllm vllm sglang ollama ollama_chat lm_studio llamafile llamacpp xinference triton petals oobabooga"
    " docker_model_runner lemonade".split()
)
"""LiteLLM's names of self-hosted engines."""

_NO_REFERENCE = "00000000-0000-0000-0000-000000000000"


def _litellm_api(value: JsonObject) -> Api:
    call = str(value["call_type"])
    name = _LITELLM_CALLS.get(call) or _LITELLM_CALLS.get(call.removeprefix("a"))
    if name is None:
        raise SkipRow("not a cached API")
    return APIS[name]


def _litellm_session(value: JsonObject) -> dict[str, str]:
    session = value.get("session_id") or value.get("trace_id")
    return {"x-session-id": str(session)} if session else {}


def _read_litellm(row: Row) -> Iterator[LoggedRequest]:
    value = row.value
    api = _litellm_api(value)
    if is_failed(value.get("status")):
        raise SkipRow("failed")
    if is_cache_hit(value.get("cache_hit")):
        raise SkipRow(ANSWERED_BY_CACHE)
    if (body := _litellm_body(value, api)) is None:
        raise InvalidRequest(
            "the log has no prompts: set general_settings.store_prompts_in_spend_logs of LiteLLM to true;"
            " kvproxy estimate lists its cost"
        )
    # Requests name an alias, `model_group`; the model has the price and the cache.
    if (model := _litellm_model(value)) is not None:
        body = {**body, "model": model}
    parameters = decoded_object(value.get("model_parameters")) or {}
    start, end = parse_time(value.get("startTime")), parse_time(value.get("endTime"))
    yield request_of(
        row,
        known_fields(parameters | body, api),
        api=api,
        headers=_litellm_session(value),
        time=start,
        response=_with_logged_usage(decoded_response(value.get("response")), value, api),
        seconds=seconds_between(start, end),
        labels=_litellm_labels(value),
        is_engine=value.get("custom_llm_provider") in _ENGINES,
    )


def _litellm_body(value: JsonObject, api: Api) -> JsonObject | None:
    """Return the body of a request; None if the log has no prompts."""
    body = decoded_object(value.get("proxy_server_request")) or {}
    body = decoded_object(body.get("body")) or body
    if any(body.get(name) for name in PROMPT_FIELDS):
        return body
    prompt = decoded(first_of(value, "messages", "input"))
    name = {"completions": "prompt", "embeddings": "input", "responses": "input"}.get(api.name, "messages")
    return {name: prompt, "model": value.get("model_group")} if prompt else None


def _read_litellm_usage(row: Row) -> Iterator[LoggedRequest]:
    """Read a row for a bill, also without its prompt."""
    value = row.value
    api = _litellm_api(value)
    if is_failed(value.get("status")) or is_cache_hit(value.get("cache_hit")) or _litellm_body(value, api) is not None:
        yield from _read_litellm(row)
        return
    labels, model = _litellm_labels(value), _litellm_model(value) or value.get("model_group")
    # The columns have OpenAI's names for each API.
    counted = APIS["embeddings" if api.name == "embeddings" else "chat"]
    yield LoggedRequest(
        row.number,
        counted,
        {"model": model or row.model},
        time=parse_time(value.get("startTime")),
        response=_with_usage({}, _logged_usage(value)),
        project=labels.project,
        client=labels.client,
        names_model=bool(model),
        team=labels.team,
        key=labels.key,
        is_engine=value.get("custom_llm_provider") in _ENGINES,
    )


def _litellm_labels(value: JsonObject) -> Labels:
    """Return the labels; a key without an alias has the beginning of its digest as its name."""
    metadata = decoded_object(value.get("metadata")) or {}
    key = str(value.get("api_key") or metadata.get("user_api_key_hash") or metadata.get("user_api_key") or "")
    # A key itself is a secret.
    digest = hashlib.sha256(key.encode()).hexdigest() if key.startswith("sk-") else key
    labels = labels_of(value)
    has_alias = any(source.get("user_api_key_alias") for source in (metadata, value))
    return replace(labels, client=labels.client if has_alias or not digest else digest[:12], key=digest)


def _litellm_model(value: JsonObject) -> str | None:
    """Return the model without LiteLLM's name of its provider, such as `bedrock/`; None if the row has only an alias.

    Open weights keep the name of their host, which decides the price.
    """
    model, own = value.get("model"), value.get("custom_llm_provider")
    if not isinstance(model, str) or not model:
        return None
    provider, _, name = model.partition("/")
    is_prefixed = bool(name) and provider in (*_LITELLM_PROVIDERS, own)
    provider, name = (provider, name) if is_prefixed else (str(own or ""), model)
    hosted = f"{provider}/{name}"
    return hosted if cache_rule(name) is None and split_host(hosted)[0] is not None else name


def _with_logged_usage(response: JsonObject | str | None, value: JsonObject, api: Api) -> JsonObject | str | None:
    """Add the usage in the columns and the metadata of a row to a response without its own."""
    if (
        not isinstance(response, dict)
        or field(response, "usage") is not None
        or api.name not in ("chat", "completions")
    ):
        return response
    return _with_usage(response, _logged_usage(value))


def _logged_usage(value: JsonObject) -> JsonObject:
    metadata = decoded_object(value.get("metadata")) or {}
    if usage := decoded_object(metadata.get("usage_object")):
        return usage
    columns = {name: count for name in ("prompt_tokens", "completion_tokens") if (count := read_count(value.get(name)))}
    return {**(decoded_object(metadata.get("additional_usage_values")) or {}), **columns}


def _read_helicone(row: Row) -> Iterator[LoggedRequest]:
    value = row.value
    api = _helicone_api(value)
    body = decoded_object(value["request_body"])
    if not body:
        raise SkipRow("no body")
    response = decoded_response(value.get("response_body"))
    request = request_of(
        row,
        body,
        api=api,
        time=parse_time(value.get("request_created_at")),
        response=response,
        seconds=seconds_of(value.get("delay_ms")),
        labels=labels_of(value, body),
    )
    yield request if field(response, "usage") is not None else replace(request, usage=_helicone_usage(value))


def _helicone_api(value: JsonObject) -> Api | None:
    """Return the API of the route; None without a route. Raises SkipRow if no provider answered the request."""
    if is_failed(value.get("response_status")):
        raise SkipRow("failed")
    if value.get("cache_reference_id", _NO_REFERENCE) not in (None, "", _NO_REFERENCE):
        raise SkipRow(ANSWERED_BY_CACHE)
    route = value.get("request_path") or value.get("target_url")
    api = api_of_route(route) if isinstance(route, str) else None
    if isinstance(route, str) and api is None:
        raise SkipRow("not a cached API")
    return api


def _helicone_usage(value: JsonObject) -> SummedUsage | None:
    """Return the usage in the fields of a row; None if it has no tokens."""
    tokens = token_counts(value)
    if tokens.prompt is None and tokens.completion is None:
        return None
    return SummedUsage(1, tokens.prompt, tokens.completion, tokens.cached, tokens.written)


def _read_helicone_usage(row: Row) -> Iterator[LoggedRequest]:
    """Read a row for a bill, also without its prompt, as in an export without bodies."""
    value = row.value
    api, usage = _helicone_api(value), _helicone_usage(value)
    if decoded_object(value["request_body"]) or usage is None:
        yield from _read_helicone(row)
        return
    labels, model = labels_of(value), first_of(value, "model", "response_model", "request_model")
    yield LoggedRequest(
        row.number,
        api or APIS["chat"],
        {"model": model or row.model},
        time=parse_time(value.get("request_created_at")),
        project=labels.project,
        client=labels.client,
        names_model=bool(model),
        team=labels.team,
        summed=usage,
    )


def _read_portkey(row: Row) -> Iterator[LoggedRequest]:
    value = row.value
    if value.get("is_success") is False or is_failed(first_of(value, "response_status_code", "response.status")):
        raise SkipRow("failed")
    if is_cache_hit(value.get("cache_status")):
        raise SkipRow(ANSWERED_BY_CACHE)
    request = decoded_object(value["request"]) or {}
    body = decoded_object(request.get("body")) or request
    route = first_of(value, "request_url", "request.url")
    yield request_of(
        row,
        body,
        api=api_of_route(route) if isinstance(route, str) else None,
        headers=_litellm_session(value),
        time=parse_time(value.get("created_at")),
        response=decoded_response(value.get("response")),
        seconds=seconds_of(value.get("response_time")),
        labels=labels_of(value, body),
    )


def _read_bifrost(row: Row) -> Iterator[LoggedRequest]:
    value = row.value
    if is_failed(value.get("status")):
        raise SkipRow("failed")
    if is_cache_hit(field(decoded(value.get("cache_debug")), "cache_hit")):
        raise SkipRow(ANSWERED_BY_CACHE)
    history: list[Json] = list(objects(decoded(value["input_history"])))
    if not history:
        raise InvalidRequest("input_history is empty: enable the logging of contents in Bifrost")
    kind = str(value.get("object", "chat.completion"))
    if not kind.startswith("chat"):
        raise SkipRow("not a cached API")
    body: JsonObject = {**(decoded_object(value.get("params")) or {}), "messages": history, "model": value.get("model")}
    if tools := objects(decoded(value.get("tools"))):
        body["tools"] = list(tools)
    yield request_of(
        row,
        known_fields(body, APIS["chat"]),
        api=APIS["chat"],
        time=parse_time(first_of(value, "timestamp", "created_at")),
        response=_with_usage(chat_response(value.get("output_message")), decoded(value.get("token_usage"))),
        seconds=seconds_of(value.get("latency")),
        labels=labels_of(value, body),
    )


def _with_usage(response: JsonObject | str | None, usage: Json) -> JsonObject | str | None:
    return {**response, "usage": usage} if isinstance(response, dict) and field(usage, "prompt_tokens") else response


FORMATS = (
    LogFormat(
        "litellm",
        "LiteLLM log",
        ("call_type", "startTime", "spend|response_cost|model_parameters"),
        _read_litellm,
        read_usage=_read_litellm_usage,
        costs=("response_cost", "spend"),
    ),
    LogFormat(
        "helicone",
        "Helicone export",
        ("request_body", "request_created_at|response_status"),
        _read_helicone,
        read_usage=_read_helicone_usage,
        costs=("cost", "costUSD"),
    ),
    LogFormat(
        "portkey",
        "Portkey export",
        ("request", "trace_id|is_success|ai_model", "ai_model|ai_org|is_success"),
        _read_portkey,
    ),
    LogFormat("bifrost", "Bifrost log", ("input_history", "provider|object"), _read_bifrost, costs=("cost",)),
)
