"""Input price of agent sessions under ways to treat pauses, with a policy that never saw the tested sessions.

python -m tests.benchmarks.pauses FOLDER [--train FOLDER] [--folds 10] [--seeds 5]

FOLDER has agent traces of WEKA (*.json.gz). Without --train the policy is cross-validated over the files.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from kvproxy.analyse.transcripts import read_transcripts
from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.providers.cache_policy import PauseTimes, SurvivalFunction, keep_warm_requests
from kvproxy.providers.pause_costs import (
    KeepWarmCount,
    LongWrite,
    Session,
    SessionStep,
    provider_policy_price,
    session_price,
    tokens_still_cached,
)
from kvproxy.providers.prices import relative_prices
from kvproxy.settings.journal import PriceSettings
from tests.benchmarks.options import read_options

ANTHROPIC_PRICES = relative_prices("claude-opus-4-8")


def read_sessions(path: Path) -> list[Session]:
    """Return the sessions of an agent trace: the parent's, then the sub-agents'."""
    return [_session(trace.requests, trace.block_size) for trace in read_transcripts([path]).traces]


def _session(rows: Sequence[dict[str, Any]], size: int) -> Session:
    steps: Session = []
    before, ended = rows[0]["hash_ids"], None
    for row in rows:
        same = common_prefix_length(before, row["hash_ids"])
        pause = None if ended is None else max(0.0, row["t"] - ended)
        steps.append(SessionStep(row["in"], 0 if ended is None else min(same * size, row["in"]), pause))
        before, ended = row["hash_ids"], row["t"] + row.get("api_time", 0)
    return [*steps, SessionStep(0, rows[-1]["in"], math.inf)]


def warm_price(session: Session, survival: SurvivalFunction, prices: PriceSettings) -> float:
    """Return the price of a session with the policy's keep-warm requests, and without one-hour writes."""

    def requests(tokens: int, kept: int) -> int:
        return keep_warm_requests(survival, prices, kept / tokens if tokens else 0.0)

    return session_price(session, requests, lambda new, unprotected: False, prices)


def lowest_price(session: Session, prices: PriceSettings, *, long_writes: bool) -> float:
    """Return the lowest price of a session if all pauses are known in advance."""
    states = {0: 0.0}
    for step in session:
        if step.pause == math.inf:
            break
        found: dict[int, float] = {}
        for kept, paid in states.items():
            for sent in (0, step.required_keep_warm_requests):
                live = tokens_still_cached(step, sent, kept)
                still = min(kept, live)
                spent = paid + (sent * step.shared + live) * prices.price_of_reuse
                new = step.tokens - live
                options = [(still, spent + prices.price_of_5m_write * new)]
                if long_writes:
                    options.append((step.tokens, spent + prices.price_of_1h_write * new))
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


def learn(sessions: Iterable[Session], typical: Sequence[int] = ()) -> SurvivalFunction:
    """Return the survival function of the pauses of sessions."""
    times = PauseTimes(typical)
    for session in sessions:
        for step in session:
            if step.pause is not None:
                times.add(step.pause)
    return times.survival()


def compare_policies(folds: Sequence[tuple[SurvivalFunction, Sequence[Session]]], prices: PriceSettings) -> Comparison:
    """Compare policies. Each fold has sessions, and the survival function of the pauses of other sessions."""
    tested = [session for _, sessions in folds for session in sessions]

    def total(requests: KeepWarmCount, long_write: LongWrite = lambda new, unprotected: False) -> float:
        return sum(session_price(session, requests, long_write, prices) for session in tested)

    def learned(price_of: Callable[[Session, SurvivalFunction, PriceSettings], float]) -> float:
        return sum(price_of(session, survival, prices) for survival, sessions in folds for session in sessions)

    base = total(lambda tokens, kept: 0)
    return Comparison(
        {count: total(lambda tokens, kept, count=count: count) / base for count in range(1, 13)},
        total(lambda tokens, kept: 0, lambda new, unprotected: True) / base,
        learned(warm_price) / base,
        learned(provider_policy_price) / base,
        sum(lowest_price(session, prices, long_writes=False) for session in tested) / base,
        sum(lowest_price(session, prices, long_writes=True) for session in tested) / base,
    )


def folder(path: Path) -> list[list[Session]]:
    files = sorted(path.glob("*.json*"))
    if not files:
        raise SystemExit(f"{path} has no traces")
    return [read_sessions(file) for file in files]


def cross_validated(files: list[list[Session]], folds: int, seed: int) -> Comparison:
    order = list(range(len(files)))
    random.Random(seed).shuffle(order)
    parts = []
    for fold in range(folds):
        tested = set(order[fold::folds])
        training = [session for place, file in enumerate(files) if place not in tested for session in file]
        parts.append((learn(training), [session for place in sorted(tested) for session in files[place]]))
    return compare_policies(parts, ANTHROPIC_PRICES)


def main() -> None:
    given = read_options(__doc__, "folder", train=Path, folds=10, seeds=5)
    files = folder(given.folder)
    if given.train is not None:
        survival = learn(session for file in folder(given.train) for session in file)
        runs = [compare_policies([(survival, [session for file in files for session in file])], ANTHROPIC_PRICES)]
    else:
        runs = [cross_validated(files, given.folds, seed) for seed in range(given.seeds)]
    one = runs[0]
    best = min(one.fixed, key=one.fixed.__getitem__)
    print(f"{len(files)} files, {len(runs)} runs; 1.000 is the five-minute TTL without keep-warm requests")
    print(f"best fixed: up to {best} keep-warm requests          {one.fixed[best]:.3f}")
    print(f"up to 3 keep-warm requests                    {one.fixed[3]:.3f}")
    print(f"one-hour writes always                        {one.hour:.3f}")
    for name, values, bound in (
        ("policy, keep-warm requests only", [run.warm for run in runs], one.warm_bound),
        ("policy, with one-hour writes", [run.policy for run in runs], one.bound),
    ):
        print(
            f"{name:45} {mean(values):.3f} ({min(values):.3f} to {max(values):.3f}),"
            f" pauses known {bound:.3f}, regret {mean(values) - bound:.3f},"
            f" gap to known keep-warm requests closed {one.closed(mean(values)):.0%}"
        )


if __name__ == "__main__":
    main()
