"""The sections `[[rules]]` and `[[edits]]`, which apply to some requests."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from kvproxy.settings.cache import JudgeName, PolicyName
from kvproxy.settings.section import Seconds, Section, compile_pattern

_PROMPT_FIELDS = frozenset("model messages prompt input system instructions tools".split())
_TENANT_HEADERS = frozenset("authorization api-key x-api-key cookie".split())


class RuleSettings(Section):
    """A rule for all requests that match its patterns, in which `*` matches any text."""

    name: str = Field(min_length=1, max_length=64, description="Name of the rule in `kvproxy explain`.")
    path: str | None = Field(default=None, description="Pattern of the route, such as /v1/chat/*.")
    model: str | None = Field(default=None, description="Pattern of the model.")
    tenant: str | None = Field(default=None, description="Pattern of a client's name, or of a tenant.")
    headers: dict[str, str] = Field(default={}, description="Patterns of headers by name; all must match.")
    tag: str | None = Field(default=None, description="Pattern of a tag of the request.")
    cache: bool | None = Field(default=None, description="False disables the response cache.")
    sampled_requests: Literal["fresh", "replay"] | None = Field(
        default=None, description="Overrides cache.sampled_requests."
    )
    semantic: bool | None = Field(default=None, description="False allows exact hits only.")
    shadow: bool | None = Field(
        default=None, description="Overrides cache.shadow: count semantic hits without serving them."
    )
    policy: PolicyName | None = Field(
        default=None, description="Overrides cache.policy; learned requires learned there, too."
    )
    judge: JudgeName | None = Field(default=None, description="Overrides cache.judge; none disables learning.")
    ttl: Seconds | None = Field(default=None, gt=0, description="Overrides cache.ttl.")
    stale_while_revalidate: Seconds | None = Field(
        default=None, ge=0, description="Overrides cache.stale_while_revalidate."
    )
    stale_if_error: Seconds | None = Field(default=None, ge=0, description="Overrides cache.stale_if_error.")
    min_similarity: float | None = Field(
        default=None, ge=0, le=1, description="Minimum cosine similarity of a semantic hit."
    )
    min_probability: float | None = Field(default=None, ge=0, le=1, description="Minimum verifier probability.")
    max_error: float | None = Field(default=None, ge=0, le=1, description="Maximum probability of a wrong hit.")
    ignore: tuple[str, ...] = Field(
        default=(), description="Body fields that do not change the cache key, such as metadata.run."
    )
    key_headers: tuple[str, ...] = Field(default=(), description="Headers that change the cache key.")
    key_fields: tuple[str, ...] = Field(
        default=(), description="More body fields that change it, such as metadata.project."
    )
    store_despite: tuple[Literal["no-store", "private"], ...] = Field(
        default=(), description="Cache-Control directives of responses that do not prevent storing: no-store, private."
    )
    tags: tuple[str, ...] = Field(
        default=(), description="More tags of the request, and of the stored response that it creates."
    )
    journal_text: Literal["none", "beginning", "all"] | None = Field(
        default=None, description="Overrides journal.text."
    )
    edits: tuple[str, ...] | None = Field(
        default=None, description="Names of the edits to apply, [] for none; by default all."
    )
    breakpoints: Literal["5m", "1h", "auto"] | None = Field(
        default=None,
        description="Lifetime of breakpoints (cache_control) to place in requests to /v1/messages; auto follows the"
        " pauses of sessions. For models of OpenAI with prompt_cache_breakpoint, each value places them. By default only the"
        " client's.",
    )
    diagnoses: bool = Field(
        default=False,
        description="Ask Anthropic and OpenAI (Responses) why they did not reuse a prefix, and compare the ledger with it.",
    )
    keep_warm_tokens: int | None = Field(
        default=None, ge=0, description="Tokens that keep-warm requests may read per hour."
    )
    keep_warm_money: float | None = Field(
        default=None, ge=0, description="Money that keep-warm requests may cost per hour, by journal.prices."
    )
    pin_sessions: bool = Field(
        default=False, description="Pin the engine's prompts of conversations that are likely to continue."
    )
    repair_history: bool = Field(
        default=False, description="Restore answers that the client sent back without reasoning or reformatted."
    )

    @property
    def keeps_provider_prefixes(self) -> bool:
        """Whether the rule keeps prompts in the provider's cache during pauses: by keep-warm requests or `breakpoints`."""
        return self.sends_keep_warm or self.breakpoints == "auto"

    @property
    def sends_keep_warm(self) -> bool:
        return self.keep_warm_tokens is not None or self.keep_warm_money is not None

    def shadows(self, later: "RuleSettings") -> bool:
        """Whether the rule matches every request of a later one, which thus never applies."""
        pairs = [(getattr(self, name), getattr(later, name)) for name in ("path", "model", "tenant", "tag")]
        names = {header.lower(): pattern for header, pattern in later.headers.items()}
        pairs += [(pattern, names.get(header.lower())) for header, pattern in self.headers.items()]
        return all(_covers(pattern, other) for pattern, other in pairs)

    @field_validator("ignore")
    @classmethod
    def _reject_prompt_fields(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if prompt := _PROMPT_FIELDS & set(names):
            raise ValueError(f"{min(prompt)} is a part of the question: it cannot be ignored")
        return names

    @field_validator("key_headers")
    @classmethod
    def _lower_case(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(name.lower() for name in names)
        if tenant := _TENANT_HEADERS & set(lowered):
            raise ValueError(f"{min(tenant)} identifies the tenant, so it changes every key: see access.tenant_headers")
        return lowered


def _covers(pattern: str | None, later: str | None) -> bool:
    """Whether a pattern matches all texts that a later one matches."""
    if pattern is None or pattern == later:
        return True
    # Of the special characters, only a star matches the stars of another pattern.
    return later is not None and not set("?[") & set(pattern) and fnmatchcase(later, pattern)


def shadowed_rules(rules: Sequence[RuleSettings]) -> list[tuple[RuleSettings, RuleSettings]]:
    """Return each rule that never applies, with the earlier rule that matches all its requests."""
    found = (
        (rule, next((first for first in rules[:place] if first.shadows(rule)), None))
        for place, rule in enumerate(rules)
    )
    return [(rule, first) for rule, first in found if first is not None]


NO_RULE = RuleSettings.model_construct(name="")
"""The rule of requests that match no rule of the operator. It changes nothing."""


class EditSettings(Section):
    """An edit of requests, after which their prompts share a longer prefix; `kvproxy lint` suggests edits."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Name in headers and records.")
    model: str = Field(default="*", description="Pattern of models; * matches any text.")
    action: Literal["strip", "move", "sort-tools", "add-tools"] = Field(
        description="Remove a span, move it to the end, sort tools by name and their properties, or add tools."
    )
    role: Literal["system", "user", "assistant", "prompt"] = Field(
        default="system", description="Role of messages; prompt means plain prompts."
    )
    pattern: str | None = Field(default=None, description="Regular expression (Python) whose only group is the span.")
    lead: str = Field(default="", description="Text before a moved span.")
    tools: str | None = Field(
        default=None,
        description="For add-tools: JSON list of tools for requests without any whose text matches; they cannot be called.",
    )

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        if self.action == "add-tools" and (self.pattern is None or not isinstance(_parsed(self.tools), list)):
            raise ValueError("add-tools requires a pattern, and tools as a JSON list")
        return self

    @field_validator("pattern")
    @classmethod
    def _check_group(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        groups = compile_pattern(pattern).groups
        if groups != 1:
            raise ValueError(f"{pattern!r} has {groups} groups: enclose only the span in ( )")
        return pattern


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except ValueError:
        return None
