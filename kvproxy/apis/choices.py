"""Answers made of choices: what OpenAI's chat completions and completions have in common."""

from collections.abc import Callable, Iterator

from kvproxy.apis.json import JsonMap, JsonObject, as_list, as_object, field
from kvproxy.apis.sse import DONE, event

# How servers call an answer that ended by itself; `length` counts only where the request set the limit.
_ENDED = frozenset("stop tool_calls function_call eos eos_token stop_sequence end_turn".split())
_LIMITS = ("max_tokens", "max_completion_tokens")


def can_be_replayed(body: JsonMap) -> bool:
    """Whether a stored answer fits a request in either form: log-probabilities of the prompt have none in a stream."""
    return body.get("prompt_logprobs") is None or not body.get("stream")


def includes_usage(body: JsonMap) -> bool:
    """Whether a streaming request asked for token counts."""
    return bool(field(body.get("stream_options"), "include_usage"))


def keeps_choices(whole: JsonMap, body: JsonMap, says: Callable[[JsonObject], bool]) -> bool:
    """Whether every choice of an answer ended by itself, or at the limit that the request set.

    Args:
        says: whether a choice says anything.
    """
    choices = whole.get("choices")
    if not isinstance(choices, list) or not choices or whole.get("error") is not None:
        return False
    if not isinstance(whole.get("usage"), dict | None):
        return False
    limited = any(body.get(name) is not None for name in _LIMITS)
    for choice in choices:
        if not isinstance(choice, dict) or not says(choice):
            return False
        reason = choice.get("finish_reason")
        if not (reason in _ENDED or (reason == "length" and limited)):
            return False
    return True


def replay_choices(
    whole: JsonObject, parts: Callable[[int, JsonObject], Iterator[JsonObject]], *, include_usage: bool
) -> Iterator[bytes]:
    """A stored answer as a stream, up to and with [DONE].

    Args:
        whole: the answer; what is beside its choices and its usage goes into every chunk.
        parts: a choice, with its index, as the choices of its chunks.
        include_usage: whether the client asked for token counts.
    """
    head: JsonObject = {name: value for name, value in whole.items() if name not in ("choices", "usage")}
    extra: JsonObject = {"usage": None} if include_usage else {}
    for place, choice in enumerate(as_list(whole["choices"])):
        known = as_object(choice)
        index = known.get("index")
        for part in parts(index if isinstance(index, int) else place, known):
            yield event({**head, "choices": [part], **extra})
    if include_usage and whole.get("usage"):
        yield event({**head, "choices": [], "usage": whole["usage"]})
    yield event(DONE)
