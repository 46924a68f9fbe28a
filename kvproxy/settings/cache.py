"""The section `[cache]`."""

from typing import Annotated, Literal

from pydantic import Field

from kvproxy.index.doors import GUARDS
from kvproxy.settings.section import Duration, OptionalDuration, OptionalSize, Section, Size, parsed_field, part_of

PolicyName = Literal["learned", "checked", "threshold"]
JudgeName = Literal["similarity", "equality", "model", "none"]
# Without a verifier, the cosine similarity alone must be high.
LEAST_SIMILARITY: dict[PolicyName, float] = {"threshold": 0.95, "checked": 0.6, "learned": 0.6}


class CacheSettings(Section):
    """The response cache."""

    enabled: bool = Field(default=True, description="Store responses, and answer from them.")
    sampled_requests: Literal["fresh", "replay"] = Field(
        default="replay",
        description="Response to a request with a temperature above 0 and no seed: the stored one (replay), or a new"
        " sample (fresh). Cache-Control: no-cache asks for a new sample, max-age for a stored one.",
    )
    semantic: bool = Field(default=True, description="Search for similar questions after an exact miss.")
    policy: PolicyName = Field(default="learned", description="Policy of semantic hits, see docs/semantic-cache.md.")
    min_similarity: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Minimum cosine of a semantic hit; by default 0.6, or 0.95 for the policy threshold.",
    )
    guards: bool = Field(default=True, description="Let guards veto semantic hits, for example by negation or numbers.")
    extra_guards: tuple[Annotated[str, part_of(GUARDS)], ...] = Field(
        default=(), description="Guards of plugins by name, in addition to our own."
    )
    verifier: str = Field(
        default="built-in",
        description="Model that compares questions: built-in, a plugin's, a CrossEncoder's folder or id, or none (not for"
        " checked).",
    )
    languages: tuple[str, ...] | None = Field(
        default=None,
        description="ISO 639-1 codes of the embedder's languages, or * for all; other questions have exact hits only. By"
        " default en, or * for the embedder multilingual.",
    )
    min_probability: float = Field(
        default=0.8,
        ge=0.0,
        le=1.0,
        description="Minimum verifier probability for the policy checked, and for learned until it is trained.",
    )
    conversations: bool = Field(
        default=True, description="Match conversations with other earlier turns that call for the same response."
    )
    max_error: float = Field(
        default=0.02, gt=0.0, lt=1.0, description="Maximum share of wrong semantic hits for learned."
    )
    lookup_timeout: Duration = parsed_field(
        0.1,
        ge=0.0,
        description="Timeout of a semantic lookup, tenfold while no other runs; then the request is forwarded.",
    )
    shadow: bool = Field(default=False, description="Count semantic hits without serving them.")
    judge: JudgeName = Field(
        default="similarity", description="How fresh responses are compared with unserved cached ones."
    )
    judge_similarity: float = Field(default=0.65, ge=0.0, le=1.0, description="Minimum cosine of two equal responses.")
    judge_budget: float = Field(
        default=0.5, ge=0.0, description="Requests to the model per compared response, if judge is model."
    )
    ttl: Duration = parsed_field(86_400.0, gt=0, description="Time until a stored response expires.")
    max_ttl: OptionalDuration = parsed_field(
        None, gt=0, description="Maximum x-kvproxy-ttl; by default 30d, or the rule's ttl."
    )
    stale_while_revalidate: Duration = parsed_field(
        0.0, ge=0, description="Time after expiry to serve while revalidating (RFC 5861)."
    )
    stale_if_error: Duration = parsed_field(
        0.0,
        ge=0,
        description="Time after expiry to serve if the upstream fails (RFC 5861).",
    )
    max_response_bytes: Size = parsed_field(
        8 * 2**20,
        ge=1,
        description="Maximum size of a response to store or to share in flight; an array's may be 16 times as large.",
    )
    shared: bool = Field(
        default=False, description="Share responses between API keys; by default each key is a tenant."
    )
    max_entries: int | None = Field(
        default=None, ge=1, description="Maximum responses; beyond it, the least useful are evicted."
    )
    max_bytes: OptionalSize = parsed_field(
        None, ge=1, description="Maximum size of requests, responses and vectors; see max_entries."
    )

    def languages_of(self, embedder: str) -> tuple[str, ...]:
        """Return the setting `languages`, or else the languages of an embedder."""
        return (("*",) if embedder == "multilingual" else ("en",)) if self.languages is None else self.languages

    @property
    def least_similarity(self) -> float:
        return LEAST_SIMILARITY[self.policy] if self.min_similarity is None else self.min_similarity
