"""The rules of the providers' prompt caches, by model; each rule has its source and the date of its last verification."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from kvproxy.providers.model_names import dashed_claude_name, split_host

ANTHROPIC_DOCS = "https://platform.claude.com/docs/en/build-with-claude/prompt-caching"
OPENAI_DOCS = "https://developers.openai.com/api/docs/guides/prompt-caching"
GEMINI_DOCS = "https://ai.google.dev/gemini-api/docs/caching"
DEEPSEEK_DOCS = "https://api-docs.deepseek.com/guides/kv_cache"
XAI_DOCS = "https://docs.x.ai/developers/advanced-api-usage/prompt-caching"
MISTRAL_DOCS = "https://docs.mistral.ai/studio-api/conversations/advanced/prompt-caching"

_MINUTE, _HOUR = 60.0, 3_600.0
ANTHROPIC_LIFETIMES: Mapping[str, float] = MappingProxyType({"5m": 5 * _MINUTE, "1h": _HOUR})
# The days on which the text of a page was last compared with the rules below.
_ANTHROPIC_DATE = date(2026, 10, 8)
_OPENAI_DATE = date(2026, 9, 23)
_GEMINI_DATE = date(2026, 10, 13)
_OTHER_DATE = date(2026, 10, 27)
_MAX_AGE_DAYS = 183
_VENDOR = re.compile(r"^(?:anthropic|openai|google|deepseek|x-ai|mistralai)/")
_BEDROCK = re.compile(r"^(?:[a-z-]+\.)?(?:anthropic|openai)\.")


@dataclass(frozen=True, slots=True, eq=False)
class CacheRule:
    """How a provider caches prompt prefixes of some models.

    Attributes:
        provider: name of the provider, as in `genai-prices`.
        models: pattern of model names without the prefix of a gateway, with dashes in the versions of Claude models.
        minimum_tokens: tokens of the shortest prefix that is cached; None if the provider does not publish it.
        lifetimes: seconds from the last use to the expiry, by name; the first one is the default.
        read_ratio: price of a cached token as a multiple of an uncached one; None if it depends on the model.
        write_ratios: price of a written token as a multiple of an uncached one, by name of the lifetime.
        mark_field: field on a content block that ends a cached prefix; None if the cache is only automatic.
        max_marks: prefixes that a request may write.
        lookback: blocks up to a mark, where a run of tool calls or of their results is one block (Anthropic), or latest
            breakpoints (OpenAI), where the provider finds a cached prefix.
        fills_cache: a request for no output is accepted, and reads or writes the cache like any other request.
        diagnoses: the provider explains on request why a prefix was not reused.
        step_tokens: cached prefixes are multiples of this number of tokens.
        usage: names of the fields that report cached and written tokens.
        source, verified: where the rule is published, and the day on which it was last compared.
    """

    provider: str
    models: str
    minimum_tokens: int | None
    lifetimes: Mapping[str, float]
    read_ratio: float | None
    write_ratios: Mapping[str, float]
    usage: Sequence[str]
    source: str
    verified: date
    mark_field: Literal["cache_control", "prompt_cache_breakpoint"] | None = None
    max_marks: int = 0
    lookback: int = 0
    fills_cache: bool = False
    diagnoses: bool = False
    step_tokens: int = 1

    @property
    def default_lifetime(self) -> float:
        return next(iter(self.lifetimes.values()))

    @property
    def lifetime_field(self) -> str | None:
        """OpenAI's field by which a request chooses one of the lifetimes; None without a choice."""
        if self.provider != "openai" or len(self.lifetimes) < 2:
            return None
        return "prompt_cache_retention" if self.mark_field is None else "prompt_cache_options.ttl"

    @property
    def default_write_ratio(self) -> float | None:
        return next(iter(self.write_ratios.values()), None)

    def is_outdated(self, today: date) -> bool:
        """Whether the last verification is more than six months ago."""
        return (today - self.verified).days > _MAX_AGE_DAYS


def _anthropic(models: str, minimum_tokens: int, read_ratio: float = 0.1, write_5m_ratio: float = 1.25) -> CacheRule:
    return CacheRule(
        "anthropic",
        models,
        minimum_tokens,
        ANTHROPIC_LIFETIMES,
        read_ratio,
        MappingProxyType({"5m": write_5m_ratio, "1h": 2.0}),
        ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation.ephemeral_1h_input_tokens"),
        ANTHROPIC_DOCS,
        _ANTHROPIC_DATE,
        mark_field="cache_control",
        max_marks=4,
        lookback=20,
        fills_cache=True,
        diagnoses=True,
    )


_ANTHROPIC_MODELS = (
    _anthropic("claude-opus-5-5*", 512, 0.05),
    _anthropic("claude-sonnet-5-5*", 512, 0.05),
    *(_anthropic(f"claude-{name}-5-[12]*", 512, 0.025) for name in ("fable", "mythos")),
    *(
        _anthropic(models, 512)
        for models in ("claude-opus-5*", "claude-fable-5*", "claude-mythos-5*", "claude-haiku-5-5*")
    ),
    *(_anthropic(models, 2_048) for models in ("claude-opus-4-7*", "claude-mythos-preview*")),
    _anthropic("claude-opus-4-[56]*", 4_096),
    _anthropic("claude-haiku-4-5*", 4_096),
    _anthropic("claude-haiku-3*", 2_048),
    _anthropic("claude-3-haiku*", 2_048, 0.12, 1.2),
    _anthropic("claude-3-5-haiku*", 2_048),
    _anthropic("claude-*", 1_024),
)

_OPENAI_DETAILS = ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens")


def _openai_with_breakpoints(models: str, read_ratio: float = 0.1) -> CacheRule:
    return CacheRule(
        "openai",
        models,
        1_024,
        # Only the Responses API accepts 12h.
        MappingProxyType({"30m": 30 * _MINUTE, "12h": 12 * _HOUR}),
        read_ratio,
        MappingProxyType({"30m": 1.25}),
        (
            *_OPENAI_DETAILS,
            "prompt_tokens_details.cache_write_tokens",
            "input_tokens_details.cache_write_tokens",
        ),
        OPENAI_DOCS,
        _OPENAI_DATE,
        mark_field="prompt_cache_breakpoint",
        max_marks=4,
        # The first 2 and the latest 50 explicit breakpoints, by the guide; the latest 80, by the reference.
        lookback=50,
        diagnoses=True,
    )


_OPENAI_LIFETIMES: Mapping[str, float] = MappingProxyType({"in_memory": 5 * _MINUTE, "24h": 24 * _HOUR})
"""In memory, OpenAI keeps prefixes for 5 to 60 minutes."""

_EXTENDED = ("gpt-5.4", "gpt-5.2", "gpt-5.1", "gpt-5", "gpt-4.1")


def _openai(models: str, *names: str) -> CacheRule:
    lifetimes = MappingProxyType({name: _OPENAI_LIFETIMES[name] for name in names or ("in_memory",)})
    # The minimum depends on the request; an earlier version of the guide gives 1,024.
    writes: Mapping[str, float] = MappingProxyType({})
    return CacheRule(
        "openai", models, 1_024, lifetimes, None, writes, _OPENAI_DETAILS, OPENAI_DOCS, _OPENAI_DATE, step_tokens=128
    )


def _automatic(
    provider: str,
    models: str,
    usage: Sequence[str],
    source: str,
    verified: date = _OTHER_DATE,
    minimum: int | None = None,
    step: int = 1,
    lifetime: float = 5 * _MINUTE,
    read_ratio: float | None = None,
) -> CacheRule:
    lifetimes = MappingProxyType({"automatic": lifetime})
    writes: Mapping[str, float] = MappingProxyType({})
    return CacheRule(
        provider, models, minimum, lifetimes, read_ratio, writes, usage, source, verified, step_tokens=step
    )


_GEMINI_USAGE = ("usageMetadata.cachedContentTokenCount",)
_DEEPSEEK_USAGE = ("prompt_cache_hit_tokens", "prompt_cache_miss_tokens")
_CACHED_TOKENS = ("prompt_tokens_details.cached_tokens",)

CACHE_RULES: Sequence[CacheRule] = (
    *_ANTHROPIC_MODELS,
    _openai_with_breakpoints("gpt-6.1-*", 0.05),
    *map(_openai_with_breakpoints, ("gpt-5.[6-9]*", "gpt-5-[6-9]*", "gpt-[6-9]*")),
    *(_openai(models, "24h") for models in ("gpt-5.5", "gpt-5.5-*")),
    *(_openai(models, "in_memory", "24h") for name in _EXTENDED for models in (name, f"{name}-20*", f"{name}-codex*")),
    _openai("gpt-5.1-chat*", "in_memory", "24h"),
    *map(_openai, ("gpt-3.5*", "gpt-4*", "gpt-5-*", "gpt-5.*", "chatgpt-*", "o[134]", "o[134]-*", "codex-*")),
    _automatic("google", "gemini-2.5-*", _GEMINI_USAGE, GEMINI_DOCS, _GEMINI_DATE, minimum=2_048),
    _automatic("google", "gemini-*", _GEMINI_USAGE, GEMINI_DOCS, _GEMINI_DATE, minimum=4_096),
    *(
        # Unused prefixes stay for hours to days.
        _automatic("deepseek", models, _DEEPSEEK_USAGE, DEEPSEEK_DOCS, minimum=64, step=64, lifetime=3 * _HOUR)
        for models in ("deepseek-chat", "deepseek-reasoner", "deepseek-flash", "deepseek-v4-*")
    ),
    # xAI publishes neither a minimum nor a lifetime; reported numbers are multiples of 128.
    *(_automatic("x-ai", f"grok-{models}*", _CACHED_TOKENS, XAI_DOCS, step=128) for models in ("[2-9]", "code")),
    # Without a version, these names are also names of open weights.
    *(
        _automatic("mistral", f"{family}-{version}", _CACHED_TOKENS, MISTRAL_DOCS, read_ratio=0.1)
        for family in ("mistral-*", "magistral-*", "codestral", "devstral-*", "ministral-*", "pixtral-*")
        for version in ("latest", "[0-9][0-9][0-9][0-9]")
    ),
)
"""The first rule whose pattern matches a model applies."""

_MAX_CACHED_NAME = 128
ASSUMED_RULE = CacheRule(
    "",
    "*",
    1_024,
    MappingProxyType({"automatic": 5 * _MINUTE}),
    None,
    MappingProxyType({}),
    (),
    "an assumption",
    _OTHER_DATE,
    step_tokens=128,
)


def cache_rule(model: str) -> CacheRule | None:
    """Return the cache rule of a model; None if no rule is known.

    `model` may have the form of Bedrock (`us.anthropic.claude-opus-4-5-20251101-v1:0`), Vertex (`claude-opus-4-5@20251101`),
    OpenRouter (`anthropic/claude-opus-4.5`), or LiteLLM (`vertex_ai/claude-opus-4-5`).
    """
    return _short_name_rule(model) if len(model) <= _MAX_CACHED_NAME else _find_rule(model)


def _find_rule(model: str) -> CacheRule | None:
    name = dashed_claude_name(_BEDROCK.sub("", _VENDOR.sub("", split_host(model.lower())[1])))
    return next((rule for rule in CACHE_RULES if fnmatchcase(name, rule.models)), None)


# Names come from clients: long ones would fill the memory.
_short_name_rule = lru_cache(maxsize=4_096)(_find_rule)


def cache_rule_or_assumption(model: str) -> CacheRule:
    """Return the cache rule of a model; a common one if it is unknown, to name the probable causes of lost reuse."""
    return cache_rule(model) or ASSUMED_RULE


def rule_of_marks(model: str) -> CacheRule:
    """Return the cache rule of a model of the Messages API; the most general one of Anthropic if the model is unknown."""
    rule = cache_rule(model)
    return rule if rule is not None and rule.mark_field == "cache_control" else _ANTHROPIC_MODELS[-1]
