"""Input price of recorded agent sessions under several policies for their pauses.

Each input token is read or written, and a keep-warm request reads the prefix that the next request shares. Requests after the
end of a session are wasted. A request may write its new tokens for one hour after a prefix that was read, and pays the higher
price for the new tokens only; it is assumed that the provider then keeps the whole prefix for one hour. Without this
(`long_writes=False`) the policy has keep-warm requests only.
"""

import gzip
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproxy.errors import InvalidRequest
from kvproxy.pause_policy import (
    HOUR,
    KEEP_WARM_SECONDS,
    CachePrices,
    PauseTimes,
    Survival,
    keep_warm_requests,
    write_for_an_hour,
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
Requests = Callable[[int, int], float]
"""Number of keep-warm requests, from the tokens of the prompt and those kept for one hour."""
LongWrite = Callable[[int, int], bool]
"""Whether to write for one hour; see `write_for_an_hour`."""


def read_sessions(path: Path) -> list[Session]:
    """Return the sessions of an agent trace of WEKA: the parent's, then the sub-agents'. Raises InvalidRequest."""
    try:
        raw = path.read_bytes()
        trace = json.loads(gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw)
        agents = [request for request in trace["requests"] if request.get("type") == "subagent"]
        rows = [request for request in trace["requests"] if request.get("type") != "subagent"]
        size = int(trace["block_size"])
        return [_session(each, size) for each in (rows, *(agent["requests"] for agent in agents)) if each]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{path} is not an agent trace of WEKA ({error!r})") from None


def _session(rows: Sequence[dict[str, Any]], size: int) -> Session:
    steps: Session = []
    before, ended = rows[0]["hash_ids"], None
    for row in rows:
        pairs = enumerate(zip(before, row["hash_ids"], strict=False))
        same = next((place for place, (one, two) in pairs if one != two), min(len(before), len(row["hash_ids"])))
        pause = None if ended is None else max(0.0, row["t"] - ended)
        steps.append(Step(row["in"], 0 if ended is None else min(same * size, row["in"]), pause))
        before, ended = row["hash_ids"], row["t"] + row.get("api_time", 0)
    return [*steps, Step(0, rows[-1]["in"], math.inf)]


def price(session: Session, requests: Requests, long_write: LongWrite, prices: CachePrices) -> float:
    """Return the price of a session's input, in tokens that are not cached."""
    total, kept, before = 0.0, 0, 0
    for step in session:
        sent = 0.0 if step.pause is None else min(step.required_requests, requests(before, kept))
        total += sent * prices.read * step.shared
        if step.pause == math.inf:
            break
        live = _live(step, sent, kept)
        kept = min(kept, live)
        new = step.tokens - live
        is_long = long_write(new, step.tokens - kept)
        total += prices.read * live + (prices.write_1h if is_long else prices.write_5m) * new
        kept = step.tokens if is_long else kept
        before = step.tokens
    return total


def _live(step: Step, sent: float, kept: int) -> int:
    if step.pause is None:
        return 0
    if sent >= step.required_requests:
        return step.shared
    return min(kept, step.shared) if step.pause - sent * KEEP_WARM_SECONDS <= HOUR else 0


def lowest_price(session: Session, prices: CachePrices, *, long_writes: bool) -> float:
    """Return the lowest price of a session if all pauses are known in advance."""
    states = {0: 0.0}
    for step in session:
        if step.pause == math.inf:
            break
        found: dict[int, float] = {}
        for kept, paid in states.items():
            for sent in (0, step.required_requests):
                live = _live(step, sent, kept)
                still = min(kept, live)
                spent = paid + (sent * step.shared + live) * prices.read
                new = step.tokens - live
                options = [(still, spent + prices.write_5m * new)]
                if long_writes:
                    options.append((step.tokens, spent + prices.write_1h * new))
                for state, cost in options:
                    found[state] = min(cost, found.get(state, math.inf))
        states = _undominated(found)
    return min(states.values())


def _undominated(states: dict[int, float]) -> dict[int, float]:
    kept: dict[int, float] = {}
    lowest = math.inf
    for state in sorted(states, reverse=True):
        if states[state] < lowest:
            lowest = kept[state] = states[state]
    return kept


@dataclass(frozen=True, slots=True)
class Comparison:
    """Prices relative to five-minute writes without keep-warm requests.

    Attributes:
        fixed: by the number of keep-warm requests in each pause.
        hour: one-hour writes always.
        warm: the policy with keep-warm requests only.
        policy: the policy with keep-warm requests and one-hour writes.
        warm_bound, bound: the lowest prices of both, with all pauses known in advance.
    """

    fixed: dict[int, float]
    hour: float
    warm: float
    policy: float
    warm_bound: float
    bound: float

    def closed(self, found: float) -> float:
        """Return the achieved share of the possible saving over the best fixed number."""
        best = min(self.fixed.values())
        return (best - found) / (best - self.warm_bound)


def learn(sessions: Iterable[Session], typical: Sequence[int] = ()) -> Survival:
    """Return the survival function of the pauses of sessions."""
    times = PauseTimes(typical)
    for session in sessions:
        for step in session:
            if step.pause is not None:
                times.add(step.pause)
    return times.survival()


def compare_policies(folds: Sequence[tuple[Survival, Sequence[Session]]], prices: CachePrices) -> Comparison:
    """Compare policies. Each fold has sessions, and the survival function of the pauses of other sessions."""
    tested = [session for _, sessions in folds for session in sessions]

    def total(requests: Requests, long_write: LongWrite = lambda new, unprotected: False) -> float:
        return sum(price(session, requests, long_write, prices) for session in tested)

    def learned(*, long_writes: bool) -> float:
        return sum(
            policy_price(session, survival, prices, long_writes=long_writes)
            for survival, sessions in folds
            for session in sessions
        )

    base = total(lambda tokens, kept: 0)
    return Comparison(
        {count: total(lambda tokens, kept, count=count: count) / base for count in range(1, 13)},  # type: ignore[misc]
        total(lambda tokens, kept: 0, lambda new, unprotected: True) / base,
        learned(long_writes=False) / base,
        learned(long_writes=True) / base,
        sum(lowest_price(session, prices, long_writes=False) for session in tested) / base,
        sum(lowest_price(session, prices, long_writes=True) for session in tested) / base,
    )


def policy_price(session: Session, survival: Survival, prices: CachePrices, *, long_writes: bool) -> float:
    """Return the price of a session under the policy of `pause_policy`."""

    def requests(tokens: int, kept: int) -> int:
        return keep_warm_requests(survival, prices, kept / tokens if tokens else 0.0)

    def long_write(new: int, unprotected: int) -> bool:
        return long_writes and write_for_an_hour(new, unprotected, survival, prices)

    return price(session, requests, long_write, prices)
