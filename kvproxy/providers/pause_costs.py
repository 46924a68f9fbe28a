"""Computes the price of an agent session's input, if requests and one-hour writes keep its prefix in the provider's cache.

A keep-warm request reads the prefix of the next request, and so extends its lifetime in the provider's cache. A
one-hour write is assumed to keep the whole prefix for one hour, at the write price of its new tokens only.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import astuple, dataclass

from kvproxy.providers.cache_policy import (
    HOUR,
    KEEP_WARM_SECONDS,
    SurvivalFunction,
    keep_warm_requests,
    should_cache_for_an_hour,
)
from kvproxy.settings.journal import PriceSettings


@dataclass(frozen=True, slots=True)
class SessionStep:
    """A request of a session, or its end.

    Attributes:
        tokens: number of prompt tokens; 0 for the end.
        shared: number of tokens in the common prefix with the previous prompt; of the first request, those that it read.
        pause: seconds since the end of the previous response; None for the first request, infinite for the end.
        price: price of the request, such as of its length; None for the price of the session.
    """

    tokens: int
    shared: int
    pause: float | None
    price: PriceSettings | None = None

    @property
    def required_keep_warm_requests(self) -> float:
        """The number of keep-warm requests that keep the prefix cached until the pause ends."""
        return math.inf if self.pause == math.inf else max(0, math.ceil((self.pause or 0.0) / KEEP_WARM_SECONDS) - 1)


Session = list[SessionStep]
KeepWarmCount = Callable[[int, int], float]
"""Returns the maximum number of keep-warm requests in a pause.

Arguments: tokens of the previous prompt, and the number of these tokens that were written for one hour.
"""
LongWrite = Callable[[int, int], bool]
"""Returns whether a request writes for one hour. Arguments: uncached tokens, and tokens not yet written for one hour."""


@dataclass(frozen=True, slots=True)
class InputPrice:
    """The price of all input, in the unit of the prices per token, and the part of it that keep-warm requests cost.

    Attributes:
        requests, tokens: number of keep-warm requests, and of the prompt tokens that they read.
    """

    total: float = 0.0
    keep_warm: float = 0.0
    requests: int = 0
    tokens: int = 0

    def __add__(self, other: "InputPrice") -> "InputPrice":
        return InputPrice(*map(operator.add, astuple(self), astuple(other)))


def session_price(session: Session, keep_warm: KeepWarmCount, long_write: LongWrite, prices: PriceSettings) -> float:
    """Return the price of a session's input, in the unit of `prices` per token."""
    return input_price(session, keep_warm, long_write, prices).total


def input_price(session: Session, keep_warm: KeepWarmCount, long_write: LongWrite, prices: PriceSettings) -> InputPrice:
    """Return the price of a session's input, in the unit of `prices` per token."""
    total, paid, kept, before, price = 0.0, 0.0, 0, 0, prices
    requests = tokens = 0
    for step in session:
        sent = 0.0 if step.pause is None else min(step.required_keep_warm_requests, keep_warm(before, kept))
        requests, tokens = requests + int(sent), tokens + int(sent) * step.shared
        # A keep-warm request repeats the previous request.
        paid += int(sent) * price.price_of_reuse * step.shared
        if step.pause == math.inf:
            break
        price = step.price or prices
        live = tokens_still_cached(step, sent, kept)
        kept = min(kept, live)
        new = step.tokens - live
        is_long = long_write(new, step.tokens - kept)
        total += price.price_of_reuse * live + (price.price_of_1h_write if is_long else price.price_of_5m_write) * new
        kept = step.tokens if is_long else kept
        before = step.tokens
    return InputPrice(total + paid, paid, requests, tokens)


def tokens_still_cached(step: SessionStep, num_keep_warm: float, one_hour_tokens: int) -> int:
    """Return the number of cached prompt tokens at the start of a request.

    Args:
        num_keep_warm: number of keep-warm requests in the pause before the request.
        one_hour_tokens: number of tokens that were written for one hour.
    """
    if step.pause is None:
        return step.shared
    if num_keep_warm >= step.required_keep_warm_requests:
        return step.shared
    return min(one_hour_tokens, step.shared) if step.pause - num_keep_warm * KEEP_WARM_SECONDS <= HOUR else 0


def provider_policy_price(session: Session, survival: SurvivalFunction, prices: PriceSettings) -> float:
    return provider_policy_input(session, survival, prices).total


def provider_policy_input(session: Session, survival: SurvivalFunction, prices: PriceSettings) -> InputPrice:
    """Return `input_price` for the keep-warm requests and one-hour writes that `provider_cache_policy` chooses."""
    return input_price(
        session,
        lambda tokens, kept: keep_warm_requests(survival, prices, kept / tokens if tokens else 0.0),
        lambda new, unprotected: should_cache_for_an_hour(new, unprotected, survival, prices),
        prices,
    )
