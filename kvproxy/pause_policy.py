"""Decides how a provider should keep a session's prompt prefix cached during the pause before the next request.

A provider such as Anthropic drops a prefix five minutes after its last use, or one hour after it for a higher price. A
keep-warm request uses the prefix only to prolong its life. The policy minimises the expected price, given earlier pauses.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

KEEP_WARM_SECONDS = 290.0
"""Interval of keep-warm requests for a prefix that expires after five minutes."""
HOUR = 3_600.0
_MOST_REQUESTS = 12
# Upper bounds of the classes of pauses, in seconds.
PAUSE_BOUNDS = (*(KEEP_WARM_SECONDS * count for count in range(1, _MOST_REQUESTS + 1)), HOUR, inf)
_LIKELY = 0.95
_PRIOR_PAUSES = 500.0
"""Weight of a prior in `PauseTimes`, as a number of pauses."""
TYPICAL_PAUSES: Sequence[int] = (3537, 70, 31, 15, 2, 8, 9, 0, 1, 5, 6, 1, 0, 72)
"""Pauses per class of `PAUSE_BOUNDS` in 60 Claude Code sessions (callanjfox/kv-cache-tester); ended sessions are last."""


@dataclass(frozen=True, slots=True)
class CachePrices:
    """Prices of cached prompt tokens, relative to uncached tokens. The defaults are Anthropic's."""

    read: float = 0.1
    write_5m: float = 1.25
    write_1h: float = 2.0


@dataclass(frozen=True, slots=True)
class Survival:
    """The probability that a pause is longer than each of `PAUSE_BOUNDS`."""

    probabilities: tuple[float, ...]

    def between(self, start: float, end: float) -> float:
        """Return the probability that a pause is longer than `start` and at most `end`, both from `PAUSE_BOUNDS`."""
        return self.probabilities[PAUSE_BOUNDS.index(start)] - self.probabilities[PAUSE_BOUNDS.index(end)]

    def end_probabilities(self) -> list[float]:
        """Return, per interval of keep-warm requests, the probability that a pause ends in it, unless it ended before."""
        spans = zip(self.probabilities[:_MOST_REQUESTS], self.probabilities[1:], strict=False)
        return [(start - end) / start if start > 0 else 0.0 for start, end in spans]


class PauseTimes:
    """Counts of pauses by client and hour of the day.

    The client's distribution is the prior of an hour's distribution, and has the prior of all clients.
    """

    def __init__(self, typical: Sequence[int] = TYPICAL_PAUSES) -> None:
        self._typical = _shares(typical, ()) or [0.0] * len(PAUSE_BOUNDS)
        self._counts: dict[tuple[str | int, ...], list[int]] = {}

    def add(self, seconds: float, client: str = "", hour: int = 0) -> None:
        """Count a pause that began in this local hour of the day. A session that ended has an endless pause (`math.inf`)."""
        for key in ((), (client,), (client, hour)):
            self._counts.setdefault(key, [0] * len(PAUSE_BOUNDS))[bisect_left(PAUSE_BOUNDS, seconds)] += 1

    def survival(self, client: str = "", hour: int = 0) -> Survival:
        shares = self._typical
        for key in ((), (client,), (client, hour)):
            shares = _shares(self._counts.get(key, ()), shares)
        left, probabilities = 1.0, []
        for share in shares:
            left -= share
            probabilities.append(max(0.0, left))
        return Survival(tuple(probabilities))


def _shares(counts: Sequence[int], general: Sequence[float]) -> Sequence[float]:
    total = sum(counts)
    if not total:
        return general
    weight = _PRIOR_PAUSES if any(general) else 0.0
    return [(count + weight * share) / (total + weight) for count, share in zip(counts, general or counts, strict=True)]


def likely_pause(survival: Survival, share: float = _LIKELY) -> float:
    """Return the seconds after which `share` of the sessions that return within an hour have returned."""
    returned = 1.0 - survival.probabilities[PAUSE_BOUNDS.index(HOUR)]
    places = zip(PAUSE_BOUNDS, survival.probabilities, strict=True)
    return next((bound for bound, left in places if 1.0 - left >= share * returned), HOUR)


def keep_warm_requests(survival: Survival, prices: CachePrices, kept: float = 0.0) -> int:
    """Return how many keep-warm requests to send in a pause for the lowest expected price.

    Each of them reads the prefix once. If the pause outlasts them, the session's next request writes the prefix again,
    except the share `kept`, which the provider keeps for one hour.
    """
    best, chosen, expected, left = 0.0, 0, 0.0, 1.0
    saved = (1.0 - kept) * (prices.write_5m - prices.read)
    for count, ends in enumerate(survival.end_probabilities(), 1):
        expected += left * (ends * saved - prices.read)
        left *= 1.0 - ends
        if expected > best:
            best, chosen = expected, count
    return chosen


def write_for_an_hour(new: int, unprotected: int, survival: Survival, prices: CachePrices) -> bool:
    """Whether the provider should cache the new tokens of a prompt for one hour, not five minutes.

    Args:
        new: number of new tokens.
        unprotected: tokens after the longest prefix that is kept for one hour, including `new`.
    """
    likely = survival.between(KEEP_WARM_SECONDS, HOUR)
    return (prices.write_1h - prices.write_5m) * new <= likely * (prices.write_5m - prices.read) * unprotected
