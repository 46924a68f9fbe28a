"""The tables of fields equal the request types of the SDKs, so that a new field of an API needs a decision."""

import typing
from collections.abc import Iterator
from typing import Any

import anthropic.types.beta.message_create_params as beta
import anthropic.types.message_create_params as messages
import openai.types.beta.response_create_params as beta_responses
import openai.types.chat.completion_create_params as chat
import openai.types.completion_create_params as completions
import openai.types.embedding_create_params as embeddings
import openai.types.responses.response_create_params as responses
import pytest
from openai.types.beta import BetaResponseInputItemParam
from openai.types.responses import ResponseInputItemParam

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.json import Json
from kvproxy.apis.key_fields import (
    CALL_IDS,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    STORED_CONTENT_IDS,
    UNREAD_IDS,
    KeyFields,
)

TYPES: dict[ApiName, list[type]] = {
    "chat": [chat.CompletionCreateParamsNonStreaming, chat.CompletionCreateParamsStreaming],
    "completions": [completions.CompletionCreateParamsNonStreaming, completions.CompletionCreateParamsStreaming],
    "embeddings": [embeddings.EmbeddingCreateParams],
    "messages": [
        messages.MessageCreateParamsNonStreaming,
        messages.MessageCreateParamsStreaming,
        beta.MessageCreateParamsNonStreaming,
        beta.MessageCreateParamsStreaming,
        beta.ParseMessageCreateParamsBase,
    ],
    "responses": [
        responses.ResponseCreateParamsNonStreaming,
        responses.ResponseCreateParamsStreaming,
        beta_responses.ResponseCreateParamsNonStreaming,
        beta_responses.ResponseCreateParamsStreaming,
    ],
}
# The SDK sends them as headers: `anthropic-beta` is in the key, the other two identify tenants.
SENT_AS_HEADERS = {"betas", "user_profile_id", "workspace_id"}
# Accepted by compatible servers or by other versions of an API, and harmless in requests to the API itself.
ALSO_IGNORED = {
    "chat": {"cache_control", "diagnostics", "prompt_cache_options.comparison_response_id"},
    "completions": {
        *("metadata", "service_tier", "safety_identifier", "cache_control", "diagnostics"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "prompt_cache_options.mode"),
        *("prompt_cache_options.ttl", "prompt_cache_options.comparison_response_id"),
    },
    "responses": {"cache_control", "diagnostics", "stream_options.include_usage", "client_metadata"},
}
ALSO_NEVER_CACHED = {
    "chat": {"prompt_cache_options.prewarm"},
    "completions": {"prompt_cache_options.prewarm"},
    "responses": {"background_options"},
}


def typed_dicts(hint: Any) -> Iterator[type]:
    """Yield the TypedDicts in a type, also those in unions."""
    if hasattr(hint, "__required_keys__"):
        yield hint
    for each in typing.get_args(hint):
        yield from typed_dicts(each)


def hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@pytest.mark.parametrize("api", TYPES)
def test_each_field_of_the_sdks_has_a_decision(api: ApiName) -> None:
    fields = APIS[api].fields
    known = fields.key | fields.ignored | fields.never_cached
    assert sum(map(len, (fields.key, fields.ignored, fields.never_cached))) == len(known), "a field has two decisions"
    declared = {name: hint for kind in TYPES[api] for name, hint in hints(kind).items() if name not in SENT_AS_HEADERS}
    # A field within an ignored object could change the response.
    inner = {
        f"{name}.{each}"
        for name in declared.keys() & fields.ignored
        for kind in typed_dicts(declared[name])
        for each in hints(kind)
    }
    own = declared.keys() | inner
    compatible = ALSO_IGNORED.get(api, set()) | ALSO_NEVER_CACHED.get(api, set())
    if api in ("chat", "completions"):
        compatible |= {"store"}
    assert own - known == set(), "decide in kvproxy/apis/key_fields.py whether the model reads these new fields"
    assert known - own == compatible - own, "these fields are not in the SDKs any more"


def test_each_id_of_an_input_item_has_a_decision() -> None:
    decided = UNREAD_IDS | CALL_IDS | STORED_CONTENT_IDS
    assert len(UNREAD_IDS) + len(CALL_IDS) + len(STORED_CONTENT_IDS) == len(decided)
    with_id = {
        name
        for union in (ResponseInputItemParam, BetaResponseInputItemParam)
        for kind in typed_dicts(union)
        if "id" in (found := hints(kind))
        for hint in [found["type"]]
        for name in literals(hint)
    }
    assert with_id - decided == set(), "decide in kvproxy/apis/key_fields.py whether the provider reads these ids"
    assert decided - with_id == set()


def literals(hint: Any) -> Iterator[str]:
    if typing.get_origin(hint) is typing.Literal:
        yield from typing.get_args(hint)
    else:
        for each in typing.get_args(hint):
            yield from literals(each)


def test_echoed_fields_are_fields_of_the_response_that_the_key_ignores() -> None:
    from openai.types.responses import Response

    fields = APIS["responses"].fields
    assert set(fields.echoed) <= fields.ignored & set(Response.model_fields)
    # The tier that computed the response, and the options that were in use, are facts of the first response.
    assert fields.ignored & set(Response.model_fields) - set(fields.echoed) == {"service_tier", "prompt_cache_options"}


@pytest.mark.parametrize(
    ("api", "body", "field"),
    [
        ("messages", {"thread": {"type": "create"}}, "thread"),
        ("messages", {"thread": {}}, "thread"),
        ("messages", {"thread": None}, None),
        ("messages", {"fallback_credit_token": "t"}, "fallback_credit_token"),
        ("responses", {"background": False}, None),
        ("responses", {"prompt_cache_options": {"mode": "explicit"}}, None),
        ("responses", {"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ("chat", {"prompt_cache_options": "odd"}, None),
    ],
)
def test_fields_that_use_a_state_of_the_provider_forbid_caching(
    api: ApiName, body: dict[str, Any], field: str | None
) -> None:
    assert APIS[api].fields.never_cached_field(body) == field
    assert APIS[api].is_cacheable(body) == (field is None)


@pytest.mark.parametrize(
    ("fields", "name", "value", "is_relevant"),
    [
        (EMBEDDINGS, "encoding_format", "float", False),
        (EMBEDDINGS, "encoding_format", "base64", True),
        (CHAT, "store", False, False),
        (CHAT, "store", 0, True),
        (RESPONSES, "store", True, False),
        (RESPONSES, "store", 1, True),
        (CHAT, "n", 1, False),
        (CHAT, "n", 2, True),
        (CHAT, "n", True, True),
        (CHAT, "tool_choice", "auto", False),
        (CHAT, "tool_choice", "none", True),
        (CHAT, "response_format", {"type": "text"}, False),
        (CHAT, "response_format", {"type": "json_object"}, True),
        # Servers have other defaults, or read them from the model's files.
        (CHAT, "temperature", 1, True),
        (CHAT, "top_p", 1, True),
        (CHAT, "presence_penalty", 0, True),
        (CHAT, "parallel_tool_calls", True, True),
        (COMPLETIONS, "echo", False, False),
        (MESSAGES, "tool_choice", {"type": "auto"}, False),
        (MESSAGES, "tool_choice", {"type": "auto", "disable_parallel_tool_use": True}, True),
        (RESPONSES, "text", {"format": {"type": "text"}}, False),
        (RESPONSES, "truncation", "auto", True),
    ],
)
def test_a_default_is_equal_to_a_missing_field(fields: KeyFields, name: str, value: Json, is_relevant: bool) -> None:
    assert list(fields.relevant_items({name: value})) == [(name, value)] * is_relevant
