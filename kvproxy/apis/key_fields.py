"""Decides for each field of a request whether the model reads it, and therefore whether it is in the cache key.

Sources: the request types of the SDKs `openai` and `anthropic`, with which a test compares these tables. A field that no table
names stays in the key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from kvproxy.apis.json import Json, JsonMap, JsonObject
from kvproxy.apis.json import field as value_of

MARKER_FIELDS = ("cache_control", "prompt_cache_breakpoint")
"""Fields of content blocks that mark prefixes for the provider's cache, and that the model does not read."""


@dataclass(frozen=True, slots=True)
class KeyFields:
    """The fields of an API's requests. A path such as `metadata.user_id` names a field of an object.

    Attributes:
        key: the model reads them, or they change the response in another way.
        ignored: they change only the transport, the price, or the provider's records.
        never_cached: a request with one of them is never stored, shared, or repeated, because it uses or changes a state that
            the provider keeps. `false` and `null` count as missing.
        echoed: ignored fields that the response repeats, with their values if the request has none.
        defaults: values that equal a missing field on all known servers. Defaults of sampling settings are not: servers read
            them from the model's files or their flags.
    """

    key: frozenset[str]
    ignored: frozenset[str]
    never_cached: frozenset[str] = frozenset()
    echoed: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({}))
    defaults: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({}))

    def never_cached_field(self, body: JsonMap) -> str | None:
        """Return the first field in the body that forbids caching; None if the request may be cached."""
        return next((path for path in _sorted(self.never_cached) if _is_set(value_at(body, path))), None)

    def relevant_items(self, body: JsonMap) -> Iterator[tuple[str, Json]]:
        """Yield the fields of a body that are in the key."""
        for name, value in body.items():
            is_unset = (
                value is None or (name in self.never_cached and not _is_set(value)) or self._is_default(name, value)
            )
            if not is_unset and name not in self.ignored:
                yield name, value

    def _is_default(self, name: str, value: Json) -> bool:
        default = self.defaults.get(name)
        # 0 equals False, but is not valid in its place.
        return type(value) is type(default) and value == default

    def echo(self, body: JsonMap) -> JsonObject:
        """Return the values that a response to this request repeats."""
        return {name: body.get(name) or default for name, default in self.echoed.items()}


def value_at(body: JsonMap, path: str) -> Json:
    name, _, rest = path.partition(".")
    value = body.get(name)
    for inner in rest.split(".") if rest else ():
        value = value_of(value, inner)
    return value


@lru_cache(maxsize=16)
def _sorted(paths: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(paths))


def _is_set(value: Json) -> bool:
    return value is not None and value is not False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Of OpenAI's and of compatible APIs: transport, accounting, and hints for the provider's prompt cache.
_IGNORED = (
    "stream stream_options stream_options.include_usage stream_options.include_obfuscation user metadata service_tier"
    " safety_identifier prompt_cache_key prompt_cache_options prompt_cache_options.mode prompt_cache_options.ttl"
    " prompt_cache_options.comparison_response_id prompt_cache_retention cache_control diagnostics"
)
# It writes the provider's prompt cache, and has no output.
_NEVER_CACHED = "prompt_cache_options.prewarm"

CHAT = KeyFields(
    key=_names(
        "messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens"
        " modalities moderation n parallel_tool_calls prediction presence_penalty reasoning_effort response_format seed stop"
        " store temperature tool_choice tools top_logprobs top_p verbosity web_search_options"
    ),
    ignored=_names(_IGNORED),
    never_cached=_names(_NEVER_CACHED),
    # Only the id of a stored completion can be retrieved.
    defaults=MappingProxyType(
        {
            "store": False,
            "n": 1,
            "logprobs": False,
            "modalities": ["text"],
            "response_format": {"type": "text"},
            "tool_choice": "auto",
        }
    ),
)
COMPLETIONS = KeyFields(
    key=_names(
        "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop store suffix"
        " temperature top_p"
    ),
    ignored=_names(_IGNORED),
    never_cached=_names(_NEVER_CACHED),
    defaults=MappingProxyType({"store": False, "n": 1, "echo": False}),
)
EMBEDDINGS = KeyFields(
    key=_names("input model dimensions encoding_format"),
    ignored=_names("user"),
    defaults=MappingProxyType({"encoding_format": "float"}),
)
MESSAGES = KeyFields(
    key=_names(
        "max_tokens messages model system tools tool_choice thinking stop_sequences output_config output_format"
        " context_management compaction mcp_servers fallbacks inference_geo"
    ),
    ignored=_names(
        "stream metadata metadata.user_id service_tier speed billing_policy billing_policy.type"
        " billing_policy.bill_to cache_control cache_control.type cache_control.ttl diagnostics diagnostics.previous_message_id"
    ),
    # A thread continues each response once, a container keeps files, and a credit token is spent once.
    never_cached=_names("thread container fallback_credit_token"),
    defaults=MappingProxyType({"tool_choice": {"type": "auto"}}),
)
RESPONSES = KeyFields(
    key=_names(
        "input instructions model access_programs context_management image include max_output_tokens max_tool_calls"
        " moderation multi_agent parallel_tool_calls previous_response_id prompt reasoning store temperature text tool_choice"
        " tools top_logprobs top_p truncation"
    ),
    ignored=_names(f"{_IGNORED} client_metadata"),
    # A conversation changes with each request; a background response is retrieved by its id.
    never_cached=_names(f"{_NEVER_CACHED} conversation background background_options"),
    echoed=MappingProxyType(
        {
            "metadata": {},
            "user": None,
            "safety_identifier": None,
            "prompt_cache_key": None,
            "prompt_cache_retention": None,
        }
    ),
    # Only the id of a stored response can be continued.
    defaults=MappingProxyType(
        {"store": True, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "truncation": "disabled"}
    ),
)

# Types of input items of the Responses API by the use of their `id`; the id of an unknown type stays in the key.
UNREAD_IDS = _names(
    "message function_call function_call_output custom_tool_call custom_tool_call_output computer_call computer_call_output"
    " local_shell_call shell_call shell_call_output apply_patch_call apply_patch_call_output mcp_call mcp_list_tools"
    " mcp_approval_response tool_search_call tool_search_output additional_tools configuration_update compaction"
    " compaction_trigger program program_output agent_message multi_agent_call multi_agent_call_output"
)
"""The model reads the content of these items, and not their ids."""
CALL_IDS = _names("mcp_approval_request local_shell_call_output")
"""The id refers to another item of the request, or another item refers to it."""
STORED_CONTENT_IDS = _names(
    "item_reference reasoning web_search_call file_search_call code_interpreter_call image_generation_call"
)
"""The provider can read content that it has stored under the id."""


def reads_item_id(item: JsonMap) -> bool:
    """Whether the provider may read content that is stored under the `id` of an input item."""
    kind = item.get("type", "message" if "role" in item else "item_reference")
    if kind == "reasoning":
        # Reasoning without content is only a reference.
        return not (item.get("encrypted_content") or item.get("content"))
    return kind not in UNREAD_IDS | CALL_IDS
