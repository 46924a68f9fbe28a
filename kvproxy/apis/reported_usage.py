"""Reads the prefix reuse that a server reports, in the formats of all supported servers."""

import logging
from typing import NamedTuple

from kvproxy.apis.json import MAX_TOKENS, Json, JsonMap, JsonObject, as_token_count, field, loads
from kvproxy.apis.sse import Event
from kvproxy.units import MAX_SECONDS

_PROMPT, _COMPLETION = ("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens", "prompt_cache_hit_tokens")
_log = logging.getLogger("kvproxy")
_MARKS = (b'"usage"', b'"timings"')


class PrefixReuse(NamedTuple):
    """How many tokens of a prompt came from a prefix cache.

    Attributes:
        written_5m, written_1h: tokens that the provider cached for five minutes or one hour; None if not reported.
        tier_tokens: the part of `cached_tokens` from tiers (host memory, disk, Redis).
    """

    prompt_tokens: int
    cached_tokens: int
    written_5m: int | None = None
    written_1h: int | None = None
    tier_tokens: int = 0


def reported_reuse(response: JsonMap) -> PrefixReuse | None:
    """Return the prefix reuse that a complete response reports; None if it has no report, or an impossible one.

    OpenAI, vLLM and SGLang report `usage.prompt_tokens_details.cached_tokens` (`input_tokens_details` in Responses),
    llama.cpp `timings.cache_n`, DeepSeek `prompt_cache_hit_tokens`. Anthropic counts `cache_read_input_tokens` and
    `cache_creation_input_tokens` beside `input_tokens`.
    """
    usage, timings = response.get("usage"), response.get("timings")
    prompt, read = as_token_count(field(usage, "input_tokens")), as_token_count(field(usage, "cache_read_input_tokens"))
    if prompt is not None and read is not None:
        written = as_token_count(field(usage, "cache_creation_input_tokens")) or 0
        hour = as_token_count(field(field(usage, "cache_creation"), "ephemeral_1h_input_tokens")) or 0
        return PrefixReuse(prompt + read + written, read, max(0, written - hour), min(hour, written))
    prompt = as_token_count(field(usage, "prompt_tokens")) if prompt is None else prompt
    fields = (
        field(field(usage, "prompt_tokens_details"), "cached_tokens"),
        field(field(usage, "input_tokens_details"), "cached_tokens"),
        field(usage, "prompt_cache_hit_tokens"),
        field(timings, "cache_n"),
    )
    cached = next((count for each in fields if (count := as_token_count(each)) is not None), None)
    if prompt is None and cached is not None and (computed := as_token_count(field(timings, "prompt_n"))) is not None:
        # llama.cpp streams timings always, but usage only on request.
        prompt = cached + computed
    return None if prompt is None or cached is None or cached > prompt else PrefixReuse(prompt, cached)


def tokens_used(response: JsonMap) -> int | None:
    """Return the sum of prompt and completion tokens that a response reports; None if it reports none, or impossible ones."""
    usage = response.get("usage")
    reported = [count for name in (*_PROMPT, *_COMPLETION) if (count := field(usage, name)) is not None]
    counts = [count for each in reported if (count := as_token_count(each)) is not None]
    return sum(counts) if counts and len(counts) == len(reported) else None


def usage_problem(response: JsonMap) -> str | None:
    """Return why the usage in a response is impossible, such as `prompt_tokens is -1`; None if it is possible."""
    usage = response.get("usage")
    for name in (*_PROMPT, *_COMPLETION, *_CACHED):
        value = field(usage, name)
        if isinstance(value, int | float) and as_token_count(value) is None:
            return f"{name} is {_short(value)}, which is not a whole number from 0 to {MAX_TOKENS:,}"
    for details, prompt_name in (("prompt_tokens_details", "prompt_tokens"), ("input_tokens_details", "input_tokens")):
        cached, prompt = field(field(usage, details), "cached_tokens"), field(usage, prompt_name)
        if isinstance(cached, int | float) and isinstance(prompt, int) and not 0 <= cached <= prompt:
            return f"{_short(cached)} of {_short(prompt)} prompt tokens are reported as cached"
    return None


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e100 else "beyond 1e100"


class UsageLog:
    """Logs the first impossible usage of each upstream."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def check(self, response: JsonMap, upstream: str) -> bool:
        """Whether the usage in a response is possible."""
        problem = usage_problem(response)
        if problem is not None and upstream not in self._logged:
            self._logged.add(upstream)
            _log.warning("%s reports an impossible usage, which counts as unknown: %s", upstream, problem)
        return problem is None


class ReuseReader:
    """Reads the prefix reuse and the prefill time from the events of a stream; None until they are reported."""

    def __init__(self) -> None:
        self.reuse: PrefixReuse | None = None
        self.prefill_seconds: float | None = None
        self._usage: JsonObject = {}
        self._timings: JsonObject = {}

    def push(self, event: Event) -> None:
        if not any(mark in event.data for mark in _MARKS):
            return
        try:
            part = loads(event.data)
        except ValueError:
            return
        for holder in (part, field(part, "message"), field(part, "response")):
            self._usage |= _without_nulls(field(holder, "usage"))
            self._timings |= _without_nulls(field(holder, "timings"))
        response: JsonObject = {"usage": self._usage, "timings": self._timings}
        self.reuse = reported_reuse(response) or self.reuse
        self.prefill_seconds = reported_prefill_seconds(response)


def reported_prefill_seconds(response: JsonMap) -> float | None:
    """Return the seconds of the prefill, which llama.cpp reports; None from other servers."""
    milliseconds = field(response.get("timings"), "prompt_ms")
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    if not 0 <= milliseconds <= MAX_SECONDS * 1000:
        return None
    return milliseconds / 1000


def _without_nulls(value: Json) -> JsonObject:
    # A later event may repeat a field with null.
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else {}
