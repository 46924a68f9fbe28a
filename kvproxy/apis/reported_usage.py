"""Reads the prefix reuse that a server reports, in the formats of all supported servers."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from kvproxy.apis.json import MAX_TOKENS, Json, JsonMap, JsonObject, as_token_count, contains_any, field, loads, objects
from kvproxy.apis.sse import Event
from kvproxy.units import MAX_SECONDS

_PROMPT = ("prompt_tokens", "input_tokens", "inputTokens", "promptTokenCount", "toolUsePromptTokenCount")
_COMPLETION = ("completion_tokens", "output_tokens", "outputTokens", "candidatesTokenCount", "thoughtsTokenCount")
# Reported beside the uncached prompt tokens.
_READ = ("cache_read_input_tokens", "cacheReadInputTokens")
_WRITTEN = ("cache_creation_input_tokens", "cacheWriteInputTokens")
_CACHED = ("prompt_cache_hit_tokens", "cachedContentTokenCount", "cached_prompt_text_tokens", "num_cached_tokens")
_PROMPT_NAMES = frozenset((*_PROMPT, *_READ, *_WRITTEN, *_CACHED))
_COMPLETION_NAMES = frozenset(_COMPLETION)
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_COMPLETION_DETAILS = ("completion_tokens_details", "output_tokens_details")
_log = logging.getLogger("kvproxy")
_MARKS = (b'"usage"', b'"usageMetadata"', b'"timings"')
_TIMINGS = ("cache_n", "prompt_n", "prompt_ms")
_LIFETIMES = ("cache_creation", "cacheDetails")
# LiteLLM names the parts of the prompt so, too: `cache_creation_tokens`, and their lifetimes in an object of their own.
_WRITTEN_DETAILS = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
_WRITTEN_LIFETIMES = "cache_creation_token_details"
_OTHER = ("prompt_cache_miss_tokens", *_LIFETIMES, *_DETAILS)
_FIELDS = frozenset((*_PROMPT, *_COMPLETION, *_READ, *_WRITTEN, *_CACHED, *_TIMINGS, *_OTHER))
_LIFETIME_FIELDS = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
_DETAIL_FIELDS = frozenset(("cached_tokens", *_WRITTEN_DETAILS))
_CLIENT_TOOLS = (None, "function", "custom")
_SERVER_FIELDS = frozenset(("mcp_servers", "plugins", "web_search_options", "search_parameters", "data_sources"))
UNSENT_TOKENS = 2**22
"""Most tokens that are in neither request nor response: four of the largest contexts of paid APIs.

They are files, images, and conversations that the request refers to, prompts that the server adds, and hidden reasoning.
"""
TOKENS_PER_BYTE = 16
"""Most tokens of a byte. A token has at least one byte of the text that the tokenizer reads, and its Unicode normalization makes
at most 11 bytes of one (U+FDFA, 3 bytes, becomes 33)."""


class PrefixReuse(NamedTuple):
    """How many tokens of a prompt came from a prefix cache.

    Attributes:
        written_5m, written_1h: tokens that the provider cached for its shorter or only lifetime (Anthropic: five minutes,
            OpenAI: 30 minutes), and for one hour; None if not reported.
        tier_tokens: the part of `cached_tokens` from tiers (host memory, disk, Redis).
    """

    prompt_tokens: int
    cached_tokens: int
    written_5m: int | None = None
    written_1h: int | None = None
    tier_tokens: int = 0

    @property
    def stored_tokens(self) -> int | None:
        """Prompt tokens in the provider's cache after the request; None if it reports no writes."""
        return None if self.written_5m is None else self.cached_tokens + self.written_5m + (self.written_1h or 0)


class UsageLimits(NamedTuple):
    """The most tokens of a prompt and of its completion that a true report can have."""

    prompt: int = MAX_TOKENS
    completion: int = MAX_TOKENS


def possible_tokens(num_bytes: int) -> int:
    """Return a number of tokens that no true report about so many bytes exceeds, unless a server runs tools in a loop."""
    return min(MAX_TOKENS, UNSENT_TOKENS + TOKENS_PER_BYTE * num_bytes)


def runs_tools(body: JsonMap) -> bool:
    """Whether the server may call tools by itself: then the usage is the sum of several prompts, each with their results."""
    tools = body.get("tools")
    if not _SERVER_FIELDS.isdisjoint(body) and any(body.get(name) for name in _SERVER_FIELDS):
        return True
    return isinstance(tools, list) and any(field(tool, "type") not in _CLIENT_TOOLS for tool in tools)


def usage_limits(body: JsonMap, request_bytes: int, response_bytes: int) -> UsageLimits:
    """Return the limits of the usage in the response to a request with this body."""
    if runs_tools(body):
        return UsageLimits()
    return UsageLimits(possible_tokens(request_bytes), possible_tokens(response_bytes))


class _ContradictionError(ValueError):
    pass


def reported_reuse(response: JsonMap) -> PrefixReuse | None:
    """Return the prefix reuse that a complete response reports; None if it has no report, or an impossible one.

    OpenAI, OpenRouter, xAI, Mistral, vLLM, and SGLang report `usage.prompt_tokens_details.cached_tokens`
    (`input_tokens_details` in Responses), and OpenAI and OpenRouter also `cache_write_tokens` there; llama.cpp
    `timings.cache_n`; DeepSeek `prompt_cache_hit_tokens` and `prompt_cache_miss_tokens`; Gemini
    `usageMetadata.cachedContentTokenCount`. LiteLLM adds `cache_creation_tokens` to the details, or has Anthropic's names beside
    `prompt_tokens`. These are parts of the prompt. Anthropic counts `cache_read_input_tokens` and
    `cache_creation_input_tokens`, and Bedrock `cacheReadInputTokens` and `cacheWriteInputTokens`, beside the input tokens,
    with what was written by lifetime in `cache_creation` and `cacheDetails`.
    """
    try:
        return _read_reuse(response)
    except _ContradictionError:
        return None


def usage_of(response: JsonMap) -> Json:
    usage = response.get("usage")
    return usage if isinstance(usage, dict) else response.get("usageMetadata")


def other_completion_tokens(usage: Json) -> int | None:
    """Return the completion tokens that Bedrock and Gemini report under names of their own; None if they do not."""
    output = as_token_count(field(usage, "outputTokens"))
    answer, thoughts = (as_token_count(field(usage, name)) for name in ("candidatesTokenCount", "thoughtsTokenCount"))
    if answer is None and thoughts is None:
        return output
    return (answer or 0) + (thoughts or 0)


def separate_reasoning_tokens(usage: Json) -> int:
    """Return the reasoning tokens that xAI's chat completions count beside the completion tokens.

    Other servers count them as a part of the completion: 0. The total shows which of both a server does.
    """
    prompt, completion, total = (
        as_token_count(field(usage, name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    if prompt is None or completion is None or total is None or total <= prompt + completion:
        return 0
    details = (field(usage, name) for name in _COMPLETION_DETAILS)
    reasoning = next((count for detail in details if (count := as_token_count(field(detail, "reasoning_tokens")))), 0)
    return reasoning if total == prompt + completion + reasoning else 0


def _read_reuse(response: JsonMap) -> PrefixReuse | None:
    usage, timings = usage_of(response), response.get("timings")
    if not isinstance(usage, dict):
        usage = {}
    uncached = _first_count(usage, ("input_tokens", "inputTokens"))
    if uncached is not None and (read := _first_count(usage, _READ)) is not None:
        return _reuse_beside_input(usage, uncached, read)
    prompt = _first_count(usage, ("input_tokens", "prompt_tokens", "inputTokens", "promptTokenCount"))
    if prompt is not None:
        # Gemini counts the results of its own tools beside the prompt.
        prompt += _first_count(usage, ("toolUsePromptTokenCount",)) or 0
    details = [detail for name in _DETAILS if isinstance(detail := usage.get(name), dict)]
    reported = [detail.get("cached_tokens") for detail in details] + [usage[name] for name in _CACHED if name in usage]
    known = [count for number in reported if (count := as_token_count(number)) is not None]
    cached = known[0] if known else as_token_count(field(timings, "cache_n"))
    if cached is None:
        cached = _first_count(usage, _READ)
    if prompt is None and cached is not None and (computed := as_token_count(field(timings, "prompt_n"))) is not None:
        # llama.cpp streams timings always, but usage only on request.
        prompt = cached + computed
    if prompt is None or cached is None:
        return None
    if len(set(known)) > 1:
        raise _ContradictionError(
            f"both {known[0]:,} and {next(other for other in known if other != cached):,} are cached"
        )
    counts = [_first_count(detail, (name,)) for detail in details for name in _WRITTEN_DETAILS]
    reported_writes = [count for count in (*counts, _first_count(usage, _WRITTEN)) if count is not None]
    # Two names may report the same tokens, one of them 0.
    written = max(reported_writes, default=None)
    if cached + (written or 0) > prompt:
        verb = "cached" if written is None else "cached or written"
        raise _ContradictionError(f"{cached + (written or 0):,} of {prompt:,} prompt tokens are reported as {verb}")
    missed = as_token_count(usage.get("prompt_cache_miss_tokens"))
    if missed is not None and cached + missed != prompt:
        raise _ContradictionError(f"{cached:,} cached and {missed:,} other tokens are not {prompt:,} prompt tokens")
    lifetimes = [detail for detail in details if _first_count(detail, _LIFETIME_FIELDS) is not None]
    lifetimes += [_details(usage[name]) for name in _LIFETIMES if usage.get(name)]
    lifetimes += [_details(detail[_WRITTEN_LIFETIMES]) for detail in details if detail.get(_WRITTEN_LIFETIMES)]
    hour = max((_first_count(counts, _LIFETIME_FIELDS[1:]) or 0 for counts in lifetimes), default=0)
    if written is None:
        return PrefixReuse(prompt, cached)
    if hour > written:
        raise _ContradictionError(f"{hour:,} tokens are reported as written for an hour, and {written:,} together")
    return PrefixReuse(prompt, cached, written - hour, hour)


def _reuse_beside_input(usage: JsonMap, uncached: int, read: int) -> PrefixReuse:
    written = _first_count(usage, _WRITTEN) or 0
    lifetimes = next((_details(value) for name in _LIFETIMES if (value := usage.get(name))), {})
    short, hour = (as_token_count(lifetimes.get(name)) or 0 for name in _LIFETIME_FIELDS)
    # The end of a stream has a higher sum after calls of the provider's own tools, without its lifetimes.
    if short + hour > written:
        raise _ContradictionError(
            f"{short + hour:,} tokens are reported as written by lifetime, and {written:,} together"
        )
    return PrefixReuse(uncached + read + written, read, written - hour, hour)


def _first_count(usage: JsonMap, names: Sequence[str]) -> int | None:
    for name in names:
        if name in usage and (count := as_token_count(usage[name])) is not None:
            return count
    return None


def tokens_used(response: JsonMap) -> tuple[int, int] | None:
    """Return the prompt and completion tokens that a response reports; None if they are missing or impossible.

    Anthropic's and Bedrock's prompt tokens exclude those of the cache, see `reported_reuse`.
    """
    usage = usage_of(response)
    sums, is_reported = [0, separate_reasoning_tokens(usage)], False
    for index, names in enumerate((_PROMPT, _COMPLETION)):
        for name in names:
            if (reported := field(usage, name)) is not None:
                if (count := as_token_count(reported)) is None:
                    return None
                sums[index] += count
                is_reported = True
    return (sums[0], sums[1]) if is_reported else None


def usage_problem(response: JsonMap, limits: UsageLimits = UsageLimits()) -> str | None:
    """Return why the usage in a response is impossible, such as `prompt_tokens is -1`; None if it is possible."""
    return _checked_reuse(response, limits)[0]


def _checked_reuse(response: JsonMap, limits: UsageLimits) -> tuple[str | None, PrefixReuse | None]:
    """Return `usage_problem`, and the prefix reuse that a response without a problem reports."""
    usage = usage_of(response)
    if isinstance(usage, dict):
        checked = [(usage, _PROMPT_NAMES, limits.prompt), (usage, _COMPLETION_NAMES, limits.completion)]
        details = (usage.get(field_name) for field_name in _DETAILS)
        checked += [(detail, _DETAIL_FIELDS, limits.prompt) for detail in details if isinstance(detail, dict)]
        for numbers, names, most in checked:
            for name, value in numbers.items():
                if name not in names or not isinstance(value, (int, float)):
                    continue
                if (count := as_token_count(value)) is None or count > most:
                    return f"{name} is {_short(value)}, which is not a whole number from 0 to {most:,}", None
    try:
        return None, _read_reuse(response)
    except _ContradictionError as problem:
        return str(problem), None


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e100 else "beyond 1e100"


class UsageLog:
    """Logs the first impossible usage of each upstream."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def check(
        self, response: JsonMap, upstream: str, limits: UsageLimits = UsageLimits()
    ) -> tuple[bool, PrefixReuse | None]:
        """Return whether the usage in a response is possible, and the prefix reuse that it reports."""
        problem, reuse = _checked_reuse(response, limits)
        if problem is not None and upstream not in self._logged:
            self._logged.add(upstream)
            _log.warning("%s reports an impossible usage, which counts as unknown: %s", upstream, problem)
        return problem is None, reuse


_LAST_EVENTS = ("message_delta", "response.completed", "response.incomplete")
"""Types of the events that report the usage of a whole response, of the APIs whose events have types."""


class ReuseReader:
    """Reads the prefix reuse and the prefill time from the events of a stream; None until they are reported.

    Attributes:
        report: the field `usage` of the whole response; None until an event at the end of the output has it.
    """

    def __init__(self) -> None:
        self.reuse: PrefixReuse | None = None
        self.prefill_seconds: float | None = None
        self.report: JsonObject | None = None
        self._usage: JsonObject = {}
        self._timings: JsonObject = {}

    def push(self, event: Event) -> None:
        if not contains_any(event.data, _MARKS):
            return
        try:
            part = loads(event.data)
        except ValueError:
            return
        latest: JsonObject = {}
        for holder in (part, field(part, "message"), field(part, "response")):
            latest |= _known(field(holder, "usage")) | _known(field(holder, "usageMetadata"))
            self._usage |= _counts(field(holder, "usage")) | _counts(field(holder, "usageMetadata"))
            self._timings |= _counts(field(holder, "timings"))
        response: JsonObject = {"usage": self._usage, "timings": self._timings}
        self.reuse = reported_reuse(response) or self.reuse
        self.prefill_seconds = reported_prefill_seconds(response)
        if latest and _is_after_output(part):
            self.report = {"usage": {**self._usage, **latest}}


def _is_after_output(part: Json) -> bool:
    """Whether an event follows the whole output, so that its usage is not that of a part; some servers report such."""
    kind = field(part, "type")
    if kind is not None:
        return kind in _LAST_EVENTS
    return all(choice.get("finish_reason") for choice in objects(field(part, "choices")))


def reported_prefill_seconds(response: JsonMap) -> float | None:
    """Return the seconds of the prefill, which llama.cpp reports; None from other servers."""
    milliseconds = field(response.get("timings"), "prompt_ms")
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    if not 0 <= milliseconds <= MAX_SECONDS * 1000:
        return None
    return milliseconds / 1000


def _counts(usage: Json) -> JsonObject:
    """Return the known numbers of a usage. A stream may repeat a field with null, and have any other fields."""
    known = {name: value for name, value in _known(usage).items() if name in _FIELDS}
    return {name: _details(value) if isinstance(value, dict | list | str) else value for name, value in known.items()}


def _known(usage: Json) -> JsonObject:
    return {name: value for name, value in usage.items() if value is not None} if isinstance(usage, dict) else {}


def _details(value: Json) -> JsonObject:
    if isinstance(value, list):
        # Bedrock's cacheDetails: [{"ttl": "1h", "inputTokens": 10}].
        value = {f"ephemeral_{field(entry, 'ttl')}_input_tokens": field(entry, "inputTokens") for entry in value}
    counts = {name: field(value, name) for name in (*_DETAIL_FIELDS, *_LIFETIME_FIELDS)}
    inner = field(value, _WRITTEN_LIFETIMES)
    counts |= {name: count for name in _LIFETIME_FIELDS if (count := field(inner, name)) is not None}
    return {name: count for name, count in counts.items() if isinstance(count, int | float)}
