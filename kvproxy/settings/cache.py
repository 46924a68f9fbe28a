"""Settings of the response cache."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

PolicyName = Literal["learned", "checked", "threshold"]
# The cosine alone has to be high; where a verifier has the last word, the cosine only finds what to ask it about.
LEAST_SIMILARITY: dict[PolicyName, float] = {"threshold": 0.95, "checked": 0.6, "learned": 0.6}


class CacheSettings(BaseModel):
    """The response cache."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="Answer from stored responses at all.")
    sampled: Literal["fresh", "replay"] = Field(
        "fresh",
        description="What a request with an explicit temperature above 0 and no seed gets: a fresh sample, or the stored one."
        " Without a temperature, or with Cache-Control: max-age, it gets the stored one.",
    )
    semantic: bool = Field(True, description="Look for similar questions when the exact key misses.")
    policy: PolicyName = Field(
        "learned", description="What decides over similar questions; see docs/semantic-cache.md."
    )
    threshold: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="Least cosine similarity of a semantic hit; by default 0.95 for the policy threshold, and 0.6 for the"
        " others, which ask a verifier too.",
    )
    guards: bool = Field(True, description="Let guards veto before the policy is asked.")
    verifier: str = Field(
        "built-in",
        description="Reads both questions: built-in, a folder or id of a CrossEncoder, or none (not for checked).",
    )
    languages: tuple[str, ...] = Field(
        ("en",),
        description="Languages that the embedder and the verifier in use know, as ISO 639-1 codes, or * for every one. Questions"
        " in others are answered from equal requests only.",
    )
    level: float = Field(
        0.8,
        ge=0.0,
        le=1.0,
        description="Least probability of the verifier, for the policy checked, and for learned while it knows too little.",
    )
    max_error: float = Field(
        0.02,
        gt=0.0,
        lt=1.0,
        description="Largest share of wrong answers among those served for similar questions, for the policy learned.",
    )
    budget: float = Field(
        0.05,
        ge=0.0,
        description="Timeout of a semantic lookup in seconds. A lookup that exceeds it is skipped, and the request is forwarded.",
    )
    shadow: bool = Field(
        False, description="Serve no similar question's answer, but count what would have been served."
    )
    judge: Literal["similarity", "equality", "model", "none"] = Field(
        "similarity", description="How a fresh answer is compared with the cached one that was not served."
    )
    judge_similarity: float = Field(
        0.9, ge=0.0, le=1.0, description="Least cosine similarity of two answers that count as the same."
    )
    ttl: float = Field(86_400.0, gt=0, description="Seconds that a stored response may be served.")
    max_ttl: float | None = Field(
        None, gt=0, description="Most seconds that a request may ask for with x-kvproxy-ttl; as many as ttl if unset."
    )
    stale_while_revalidate: float = Field(
        0.0,
        ge=0,
        description="Seconds beyond its time in which a stored response is served once more while it is computed anew.",
    )
    stale_if_error: float = Field(
        0.0,
        ge=0,
        description="Seconds beyond its time in which a stored response is served where no fresh answer can be had: nothing"
        " answers, in time or at all, or with a status of 500 or more.",
    )
    pace: float = Field(
        0.0,
        ge=0,
        description="Tokens a second at which the stream of a stored response is replayed, for clients that need it; 0: as"
        " fast as possible.",
    )
    max_response_bytes: int = Field(
        8 * 2**20, ge=1, description="Largest response that is stored, or shared between identical requests under way."
    )
    shared: bool = Field(
        False, description="Answer every API key from all responses; otherwise each has its own, hashed as its tenant."
    )
    max_entries: int | None = Field(None, ge=1, description="Most stored responses; beyond it the least useful go.")
    max_bytes: int | None = Field(
        None, ge=1, description="Most bytes of requests, responses and vectors; beyond it the least useful go."
    )
    vectors: Literal["float32", "fp16", "int8"] = Field(
        "float32", description="How vectors are kept in memory; fp16 takes half, int8 a quarter."
    )

    @property
    def least_similarity(self) -> float:
        """The threshold, or the default of the policy."""
        if self.threshold is not None:
            return self.threshold
        return LEAST_SIMILARITY[self.policy]
