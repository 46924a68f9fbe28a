"""Decides how a provider should keep a session's prompt prefix cached during the pause before the next request.

A provider such as Anthropic drops a prefix some minutes after its last use, or after one hour at a higher price. A keep-warm
request is a use that only keeps the prefix cached. The policy minimises the expected price, given the earlier pauses.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from kvproxy.providers.cache_rules import ANTHROPIC_LIFETIMES
from kvproxy.settings.journal import PriceSettings

KEEP_WARM_MARGIN = 10.0
"""Seconds from a keep-warm request to the expiry of the prefix."""
KEEP_WARM_SECONDS = ANTHROPIC_LIFETIMES["5m"] - KEEP_WARM_MARGIN
"""Interval of keep-warm requests for a prefix with the shorter lifetime, in seconds."""
HOUR = ANTHROPIC_LIFETIMES["1h"]
_MOST_REQUESTS = 12
# Upper bounds of the classes of pauses, in seconds.
PAUSE_BOUNDS = (*(KEEP_WARM_SECONDS * count for count in range(1, _MOST_REQUESTS + 1)), HOUR, inf)
_LIKELY = 0.95
MAX_DISTRIBUTIONS = 10_000
_PRIOR_WEIGHT = 500.0  # Number of pauses that a prior distribution counts as.
# Number of pauses in each class, in 60 Claude Code sessions (callanjfox/kv-cache-tester); the last one counts ends of sessions.
TYPICAL_PAUSES: Sequence[int] = (3537, 70, 31, 15, 2, 8, 9, 0, 1, 5, 6, 1, 0, 72)


HEADLESS_PAUSES: Sequence[int] = (TYPICAL_PAUSES[0], *(0,) * (len(TYPICAL_PAUSES) - 2), TYPICAL_PAUSES[-1])
"""`TYPICAL_PAUSES` without the pauses of users: without a user, a run continues immediately or ends."""


@dataclass(frozen=True, slots=True)
class SurvivalFunction:
    """For each of `PAUSE_BOUNDS`, the probability that a pause is longer."""

    probabilities: tuple[float, ...]

    def pause_probability(self, start: float, end: float) -> float:
        return self.probabilities[PAUSE_BOUNDS.index(start)] - self.probabilities[PAUSE_BOUNDS.index(end)]

    def pause_end_probabilities(self) -> list[float]:
        """Return, for each keep-warm interval, the probability that a pause that reaches the interval ends in it."""
        spans = zip(self.probabilities[:_MOST_REQUESTS], self.probabilities[1:], strict=False)
        return [(start - end) / start if start > 0 else 0.0 for start, end in spans]


class PauseTimes:
    """Estimates the distribution of pauses in sessions, by client and hour of the day.

    The prior distribution of an hour is its client's distribution, and of a client, the distribution of all clients.
    """

    def __init__(self, typical: Sequence[int] = TYPICAL_PAUSES) -> None:
        self._typical = _posterior(typical, ()) or [0.0] * len(PAUSE_BOUNDS)
        self._counts: OrderedDict[tuple[str | int, ...], list[int]] = OrderedDict()

    def add(self, seconds: float, client: str = "", hour: int = 0) -> None:
        """Count a pause that began in a local hour of the day. The end of a session is a pause of `math.inf` seconds."""
        # The counts of all clients are the newest, so they stay.
        for key in ((client, hour), (client,), ()):
            self._counts.setdefault(key, [0] * len(PAUSE_BOUNDS))[bisect_left(PAUSE_BOUNDS, seconds)] += 1
            self._counts.move_to_end(key)
        while len(self._counts) > MAX_DISTRIBUTIONS:
            self._counts.popitem(last=False)

    def survival(self, client: str = "", hour: int = 0) -> SurvivalFunction:
        shares = self._typical
        for key in ((), (client,), (client, hour)):
            shares = _posterior(self._counts.get(key, ()), shares)
        left, probabilities = 1.0, []
        for share in shares:
            left -= share
            probabilities.append(max(0.0, left))
        return SurvivalFunction(tuple(probabilities))


def _posterior(counts: Sequence[int], prior: Sequence[float]) -> Sequence[float]:
    total = sum(counts)
    if not total:
        return prior
    weight = _PRIOR_WEIGHT if any(prior) else 0.0
    return [(count + weight * share) / (total + weight) for count, share in zip(counts, prior or counts, strict=True)]


def pause_quantile(survival: SurvivalFunction, share: float = _LIKELY) -> float:
    """Return the quantile `share` of the pauses up to one hour, in seconds."""
    returned = 1.0 - survival.probabilities[PAUSE_BOUNDS.index(HOUR)]
    places = zip(PAUSE_BOUNDS, survival.probabilities, strict=True)
    return next((bound for bound, left in places if 1.0 - left >= share * returned), HOUR)


def keep_warm_requests(
    survival: SurvivalFunction, prices: PriceSettings, kept_share: float = 0.0, uncached_share: float = 0.0
) -> int:
    """Return the number of keep-warm requests in a pause that minimises the expected price.

    Args:
        kept_share: fraction of the cached prefix that the provider keeps for one hour anyway.
        uncached_share: tokens after the cached prefix, as a fraction of the prefix; each request pays them in full.
    """
    best, chosen, expected, left = 0.0, 0, 0.0, 1.0
    saved = (1.0 - kept_share) * (prices.price_of_5m_write - prices.price_of_reuse)
    paid = prices.price_of_reuse + uncached_share * prices.input
    for count, ends in enumerate(survival.pause_end_probabilities(), 1):
        expected += left * (ends * saved - paid)
        left *= 1.0 - ends
        if expected > best:
            best, chosen = expected, count
    return chosen


def should_cache_for_an_hour(
    new_tokens: int, short_lived_tokens: int, survival: SurvivalFunction, prices: PriceSettings
) -> bool:
    """Whether the provider should cache the new tokens of a prompt for one hour, not five minutes.

    `short_lived_tokens` are all tokens that the provider does not keep for one hour yet, including the new ones.
    """
    likely = survival.pause_probability(KEEP_WARM_SECONDS, HOUR)
    saved = likely * (prices.price_of_5m_write - prices.price_of_reuse)
    return (prices.price_of_1h_write - prices.price_of_5m_write) * new_tokens <= saved * short_lived_tokens
