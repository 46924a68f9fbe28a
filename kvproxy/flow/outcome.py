"""What became of a request. `Cache-Status`, the metrics and the journal are all written from it."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal

Layer = Literal["exact", "semantic", "forward", "bypass", "gone", "error"]
"""Who answered: a cache, or the backend (`forward`). `bypass`: passed on unread. `gone`: the client left before an answer
began. `error`: nobody."""
Stale = Literal["stale-while-revalidate", "stale-if-error"]
"""Why an answer was given that was past its time (RFC 5861): it is computed anew meanwhile, or none could be had."""
Forwarded = Literal["uri-miss", "request", "bypass"]
"""Why it was forwarded (RFC 9211): nothing was stored, the request asked for it, or it is not cached at all."""


@dataclass(frozen=True, slots=True)
class PrefixUse:
    """Tokens of a prompt, how many of them were cached, and how many of these came from a tier beyond the pool."""

    prompt_tokens: int
    cached_tokens: int
    tier_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """Why a similar question's answer was served: the cosine, the verifier's score, the bound on the error."""

    similarity: float
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request.

    Attributes:
        layer: who answered.
        entry: id of the entry that answered, or of the one that was made, which may be on its way to the store; None where there
            is none.
        age, ttl: seconds since a hit was stored, and for which it may still be served; less than 0 where it was past its time.
        stale: why it was given all the same.
        tokens: of a hit's answer.
        match: of a semantic hit.
        forwarded: why it was forwarded, where it was.
        skipped: whether there was no time to look for similar questions.
        stored: whether the answer is known to be stored, durable: only who asks for that (`confirm`) waits for it.
        collapsed: whether it was shared with an identical request under way.
        status: the backend's HTTP status.
        prefix: what the backend reused of the prompt, where it tells.
    """

    layer: Layer
    entry: str | None = None
    age: float = 0.0
    ttl: float = 0.0
    stale: Stale | None = None
    tokens: int = 0
    match: Match | None = None
    forwarded: Forwarded | None = None
    skipped: bool = False
    stored: bool = False
    collapsed: bool = False
    status: int = 200
    prefix: PrefixUse | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client gets.

    Attributes:
        headers: names in lower case, repeated ones included.
        body: whole, or in parts as they come.
        outcome: what became of the request.
        close: to be called when a body that comes in parts is done with, read or not.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes | AsyncIterator[bytes]
    outcome: Outcome
    close: Callable[[], None] = field(default=lambda: None)
