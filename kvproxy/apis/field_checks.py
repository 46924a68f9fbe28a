"""Checks of fields. Each raises InvalidRequest with the field and its valid values."""

from types import NoneType

from kvproxy.apis.json import Json, JsonMap
from kvproxy.errors import InvalidRequest

_MAX_SHOWN = 40
_QUESTION_INDEPENDENT = frozenset(
    # The question and its context, which is part of the namespace.
    "model messages system instructions input"
    # Sampling: part of the namespace, and valid for any question.
    " temperature top_p top_k min_p typical_p seed max_tokens max_completion_tokens max_output_tokens min_tokens num_predict"
    " num_ctx stop stop_sequences stop_token_ids frequency_penalty presence_penalty repetition_penalty repeat_penalty"
    " length_penalty ignore_eos skip_special_tokens spaces_between_special_tokens include_stop_str_in_output"
    " truncate_prompt_tokens truncation reasoning_effort verbosity thinking enable_thinking chat_template_kwargs"
    " add_generation_prompt parallel_tool_calls"
    # Transport.
    " stream stream_options user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options"
    " prompt_cache_retention cache_control diagnostics priority keep_alive request_id".split()
)
_DEFAULTS: dict[str, tuple[Json, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "tool_choice": ("auto", "none"),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "text": ({"format": {"type": "text"}},),
}


def allows_semantic(body: JsonMap) -> bool:
    """Whether the fields of a request allow semantic hits. Unknown fields do not."""
    return all(
        name in _QUESTION_INDEPENDENT
        or value in _DEFAULTS.get(name, ())
        or value is None
        or value is False
        or value in ([], {})
        for name, value in body.items()
    )


def check_common_fields(body: JsonMap, *, least_tokens: int = 1) -> None:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model is required: a name from /v1/models", param="model")
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        check_integer(body, name, least=least_tokens)
    check_integer(body, "n", least=1)
    check_number(body, "temperature", 0.0, 2.0)
    check_number(body, "top_p", 0.0, 1.0)
    check_integer(body, "seed")
    check_flag(body, "stream")
    check_texts(body, "stop")


def check_messages(body: JsonMap, content: tuple[type, ...] = (str, list, NoneType)) -> None:
    """Check that `messages` is a list of objects with a role, and a content of one of these types."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages is required: a list with at least one message", param="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{number}] must be an object with a role", param=f"messages[{number}]")
        _require(isinstance(message.get("content"), content), f"messages[{number}].content", "a text or a list")


def check_flag(body: JsonMap, name: str) -> None:
    _require(isinstance(body.get(name), bool | None), name, "true or false")


def check_texts(body: JsonMap, name: str) -> None:
    value = body.get(name)
    texts = value if isinstance(value, list) else [value]
    _require(value is None or all(isinstance(text, str) for text in texts), name, "a text or a list of texts")


def check_objects(body: JsonMap, name: str) -> None:
    value = body.get(name)
    valid = value is None or (isinstance(value, list) and all(isinstance(item, dict) for item in value))
    _require(valid, name, "a list of objects")


def check_object(body: JsonMap, name: str) -> None:
    _require(isinstance(body.get(name), dict | None), name, "an object")


def check_integer(body: JsonMap, name: str, least: int | None = None, most: int | None = None) -> None:
    value = body.get(name)
    if value is None:
        return
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    _require(is_integer, name, f"a whole number, not {_abbreviate(value)}")
    assert isinstance(value, int)
    _require(least is None or value >= least, name, f"at least {least}, not {_abbreviate(value)}")
    _require(most is None or value <= most, name, f"at most {most}, not {_abbreviate(value)}")


def check_number(body: JsonMap, name: str, least: float, most: float) -> None:
    value = body.get(name)
    valid = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    _require(value is None or valid, name, f"a number from {least:g} to {most:g}, not {_abbreviate(value)}")


def _require(is_valid: bool, name: str, expected: str) -> None:
    if not is_valid:
        raise InvalidRequest(f"{name} must be {expected}", param=name)


def _abbreviate(value: object) -> str:
    # Python refuses to convert thousands of digits to text.
    if isinstance(value, int) and abs(value) > 10**_MAX_SHOWN:
        return "a number with too many digits"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
