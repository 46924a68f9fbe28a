"""Settings of rules: what holds for some requests and not for others."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvproxy.settings.cache import PolicyName

_ASKED = frozenset("model messages prompt input system instructions tools".split())
"""Fields that say what is asked: an answer to another question may not be served for them."""
_SECRET = frozenset("authorization api-key x-api-key cookie".split())
"""Headers that say who asks, which is a part of every key already."""


class RuleSettings(BaseModel):
    """One rule. In patterns `*` stands for any text. What is not given matches everything, or changes nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=64, description="Its name, shown by `kvproxy explain`.")
    path: str | None = Field(None, description="Pattern of the route, as /v1/chat/*.")
    model: str | None = Field(None, description="Pattern of the model that is asked for.")
    tenant: str | None = Field(None, description="Pattern of a client's name, or of a tenant as listings show it.")
    headers: dict[str, str] = Field({}, description="Patterns of headers by their names; all must be there and match.")
    tag: str | None = Field(None, description="Pattern of a tag that the request gives its answer.")
    cache: bool | None = Field(None, description="False: neither answer from stored responses nor store the answer.")
    sampled: Literal["fresh", "replay"] | None = Field(
        None, description="What a request with a temperature above 0 gets, in place of cache.sampled."
    )
    semantic: bool | None = Field(None, description="False: answer from equal requests only.")
    policy: PolicyName | None = Field(
        None,
        description="What decides over similar questions, in place of cache.policy: learned only where that is learned.",
    )
    ttl: float | None = Field(None, gt=0, description="Seconds that an answer may be served, in place of cache.ttl.")
    stale_while_revalidate: float | None = Field(
        None, ge=0, description="Seconds beyond, in which it is served once more while it is computed anew."
    )
    stale_if_error: float | None = Field(
        None, ge=0, description="Seconds beyond, in which it is served where no fresh answer can be had."
    )
    similarity: float | None = Field(None, ge=0, le=1, description="Least cosine similarity of a semantic hit.")
    level: float | None = Field(None, ge=0, le=1, description="Least probability of the verifier.")
    max_error: float | None = Field(None, ge=0, le=1, description="Largest probability of a wrong answer.")
    ignore: tuple[str, ...] = Field(
        (),
        description="Fields of the body that make no other key, as user or metadata.run; never what says what is asked.",
    )
    key_headers: tuple[str, ...] = Field((), description="Headers that make another key, which others do not.")
    key_fields: tuple[str, ...] = Field(
        (), description="Fields of the body that make another key although they change no answer, as metadata.project."
    )
    tags: tuple[str, ...] = Field((), description="Tags that the stored answer gets too.")
    journal_text: Literal["none", "beginning", "all"] | None = Field(
        None, description="Text that the journal keeps of the request, in place of journal.text."
    )
    edits: tuple[str, ...] | None = Field(
        None, description="Names of the edits that are made in the request, [] for none; all of them if unset."
    )
    pace: float | None = Field(
        None, ge=0, description="Tokens a second at which a hit's stream is replayed, in place of cache.pace."
    )

    @field_validator("ignore")
    @classmethod
    def _still_the_same_question(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if asked := _ASKED & set(names):
            raise ValueError(f"{min(asked)} says what is asked: it cannot be ignored")
        return names

    @field_validator("key_headers")
    @classmethod
    def _lower_case(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(name.lower() for name in names)
        if secret := _SECRET & set(lowered):
            raise ValueError(f"{min(secret)} says who asks, which every key holds already: see access.tenant_headers")
        return lowered
