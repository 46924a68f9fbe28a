"""What a server says that it reused of a prompt, in whichever of the forms that servers have for it."""

from kvproxy.apis.json import Json, JsonMap, JsonObject, field, loads
from kvproxy.apis.sse import Event

_MARKS = (b'"usage"', b'"timings"')


class ReuseReader:
    """Takes a stream's events, and parses only those that may tell.

    Attributes:
        told: tokens of the prompt, and how many of them were reused; None until the stream tells.
    """

    def __init__(self) -> None:
        self.told: tuple[int, int] | None = None
        self._usage: JsonObject = {}
        self._timings: JsonObject = {}

    def take(self, event: Event) -> None:
        """Take one event; what cannot be read is passed over."""
        if not any(mark in event.data for mark in _MARKS):
            return
        try:
            part = loads(event.data)
        except ValueError:
            return
        for holder in (part, field(part, "message"), field(part, "response")):
            self._usage |= _given(field(holder, "usage"))
            self._timings |= _given(field(holder, "timings"))
        self.told = reported_reuse({"usage": self._usage, "timings": self._timings}) or self.told


def _given(value: Json) -> JsonObject:
    """The fields of an object that say something: a later event leaves out what an earlier one told."""
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else {}


def reported_reuse(whole: JsonMap) -> tuple[int, int] | None:
    """Tokens of the prompt, and how many of them came from the server's own cache; None where it does not tell.

    OpenAI, vLLM and SGLang have `usage.prompt_tokens_details.cached_tokens` (`input_tokens_details` in Responses), llama.cpp
    `timings.cache_n`, Anthropic `cache_read_input_tokens` beside the tokens that were not read, DeepSeek
    `prompt_cache_hit_tokens`.
    """
    usage, timings = whole.get("usage"), whole.get("timings")
    prompt, read = _count(field(usage, "input_tokens")), _count(field(usage, "cache_read_input_tokens"))
    if prompt is not None and read is not None:
        return prompt + read + (_count(field(usage, "cache_creation_input_tokens")) or 0), read
    prompt = _count(field(usage, "prompt_tokens")) if prompt is None else prompt
    told = [
        field(field(usage, "prompt_tokens_details"), "cached_tokens"),
        field(field(usage, "input_tokens_details"), "cached_tokens"),
        field(usage, "prompt_cache_hit_tokens"),
        field(timings, "cache_n"),
    ]
    cached = next((count for each in told if (count := _count(each)) is not None), None)
    if prompt is None and cached is not None and (computed := _count(field(timings, "prompt_n"))) is not None:
        # A stream of llama.cpp has its timings, and its usage only where the client asks for it.
        prompt = cached + computed
    return None if prompt is None or cached is None else (prompt, min(cached, prompt))


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None
