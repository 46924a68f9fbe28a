"""Input prices of agent sessions, with keep-warm requests or one-hour writes for their pauses.

A keep-warm request reads the prefix that the next request shares. A request with one-hour writes pays their price for its new
tokens only; it is assumed that the provider then keeps the whole prefix for one hour.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from kvproxy.pause_policy import (
    HOUR,
    KEEP_WARM_SECONDS,
    CachePrices,
    Survival,
    keep_warm_requests,
    should_cache_for_an_hour,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A request of a session, or its end.

    Attributes:
        tokens: of the prompt; 0 for the end.
        shared: tokens in common with the previous prompt.
        pause: seconds since the end of the previous response; None for the first request, infinite for the end.
    """

    tokens: int
    shared: int
    pause: float | None

    @property
    def required_requests(self) -> float:
        """Return the number of keep-warm requests that keep the prefix cached through the pause."""
        return math.inf if self.pause == math.inf else max(0, math.ceil((self.pause or 0.0) / KEEP_WARM_SECONDS) - 1)


Session = list[Step]
KeepWarmCount = Callable[[int, int], float]
"""Number of keep-warm requests in a pause, from the tokens of the prompt and those kept for one hour."""
LongWrite = Callable[[int, int], bool]
"""Whether to write for one hour, from the number of new tokens and the number of tokens without a one-hour write."""


def session_price(session: Session, requests: KeepWarmCount, long_write: LongWrite, prices: CachePrices) -> float:
    """Return the price of a session's input, in units of an uncached token's price."""
    total, kept, before = 0.0, 0, 0
    for step in session:
        sent = 0.0 if step.pause is None else min(step.required_requests, requests(before, kept))
        total += sent * prices.read * step.shared
        if step.pause == math.inf:
            break
        live = cached_tokens(step, sent, kept)
        kept = min(kept, live)
        new = step.tokens - live
        is_long = long_write(new, step.tokens - kept)
        total += prices.read * live + (prices.write_1h if is_long else prices.write_5m) * new
        kept = step.tokens if is_long else kept
        before = step.tokens
    return total


def cached_tokens(step: Step, sent: float, kept: int) -> int:
    """Return the tokens of a step that are still cached after `sent` keep-warm requests.

    `kept` tokens were written for one hour.
    """
    if step.pause is None:
        return 0
    if sent >= step.required_requests:
        return step.shared
    return min(kept, step.shared) if step.pause - sent * KEEP_WARM_SECONDS <= HOUR else 0


def pause_policy_price(session: Session, survival: Survival, prices: CachePrices) -> float:
    """Return the price of a session's input under the policy of `pause_policy`; its unit is as in `session_price`."""

    def requests(tokens: int, kept: int) -> int:
        return keep_warm_requests(survival, prices, kept / tokens if tokens else 0.0)

    def long_write(new: int, unprotected: int) -> bool:
        return should_cache_for_an_hour(new, unprotected, survival, prices)

    return session_price(session, requests, long_write, prices)
