"""The operator's rule for a request."""

from dataclasses import dataclass
from typing import Literal

from kvproxy.index.policies.policy import PolicyName


@dataclass(frozen=True, slots=True)
class RequestRule:
    """Settings of the matching rule; None uses the global setting. See docs/rules.md.

    Attributes:
        name: None if no rule matches.
        semantic: allow semantic hits.
        ttl: seconds until a response expires, if the request does not set it.
        stale_while_revalidate, stale_if_error: seconds after that.
        ignored: paths of body fields that are not part of the key.
        key_headers, key_fields: headers and fields that are part of the key.
        text: recorded text in the journal.
        edits: names of the active edits.
        pace: tokens per second of replayed streams.
        sampled_requests: response to requests for a random sample.
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
    sampled_requests: Literal["fresh", "replay"] | None = None


NO_RULE = RequestRule()
