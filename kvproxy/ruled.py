"""What a rule sets for a request: read by all that answers it."""

from dataclasses import dataclass
from typing import Literal

from kvproxy.index.policies.policy import PolicyName


@dataclass(frozen=True, slots=True)
class Ruled:
    """What the operator's rule sets for a request; what is None is left to the settings. See docs/rules.md.

    Attributes:
        name: of the rule; None where no rule matches.
        semantic: whether similar questions count.
        policy: what decides over similar questions.
        ttl: seconds to keep an answer of which the request says nothing.
        stale_while_revalidate, stale_if_error: seconds beyond that.
        ignored: fields of the body that make no other key, by their paths.
        key_headers, key_fields: headers and fields that do.
        text: what the journal keeps of the request's text.
        edits: names of the edits that hold.
        pace: tokens a second at which a hit's stream is replayed.
        sampled: what requests that ask for a random sample get.
    """

    name: str | None = None
    semantic: bool = True
    policy: PolicyName | None = None
    ttl: float | None = None
    stale_while_revalidate: float | None = None
    stale_if_error: float | None = None
    ignored: tuple[str, ...] = ()
    key_headers: tuple[str, ...] = ()
    key_fields: tuple[str, ...] = ()
    text: str | None = None
    edits: tuple[str, ...] | None = None
    pace: float | None = None
    sampled: Literal["fresh", "replay"] | None = None


UNRULED = Ruled()
