"""The verified policy over simulated traffic: wrong answers among those served, against the bound, as it learns.

python -m tests.benchmarks.verified_policy [--requests 50000] [--seed 0] [--max-errors 0.01]

The traffic is not drawn from the policy's own model. Questions belong to intents of Zipf popularity; every intent has a near miss
that looks like it; scores are normal, with offsets of their own for each entry and each near miss, so that what a score means
differs; some intents have answers that change all the time, and some comparisons err.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.observations import History, Observation
from kvproxy.index.policies.policy import Neighbour, best
from kvproxy.index.policies.verified import VerifiedPolicy
from tests.reference.memory_observations import MemoryObservations

INTENTS = 2_000
VOLATILE = 0.02  # Intents whose answer is another one each time.
MISJUDGED = 0.001  # Comparisons that say the opposite.
TENTHS = 10


@dataclass
class World:
    """Who asks what, and how the scores fall."""

    generator: np.random.Generator
    volatile: np.ndarray = field(init=False)
    confusion: np.ndarray = field(init=False)
    popularity: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        weights = 1.0 / np.arange(1, INTENTS + 1)
        self.popularity = weights / weights.sum()
        self.volatile = self.generator.random(INTENTS) < VOLATILE
        self.confusion = self.generator.normal(-3.0, 2.0, INTENTS // 2)

    def score(self, asked: int, intent: int, offset: float) -> float:
        """The verifier's probability for a question of one intent and an entry of another."""
        mean = 3.5 + offset if asked == intent else self.confusion[asked // 2] + offset
        return float(1.0 / (1.0 + np.exp(-self.generator.normal(mean, 1.2))))


class Scripted:
    """A verifier that says what the world drew."""

    name = "scripted"

    def __init__(self) -> None:
        self.next: list[float] = []

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray) -> np.ndarray:
        assert len(pairs) == len(self.next)
        return np.array(self.next, dtype=np.float32)


class Observed(MemoryObservations):
    """With histories at hand, since the list would be searched again for each request."""

    def __init__(self) -> None:
        super().__init__()
        self.by_entry: dict[str, list[Observation]] = defaultdict(list)

    def add(self, observations: Sequence[Observation]) -> None:
        super().add(observations)
        for observation in observations:
            self.by_entry[observation.entry].append(observation)

    def histories(self, ids: Sequence[str], scorer: str) -> dict[str, History]:
        found = {}
        for id in ids:
            rows = self.by_entry[id][-100:]
            found[id] = History(tuple(row.score or 0.0 for row in rows), tuple(row.right for row in rows))
        return found


@dataclass(frozen=True)
class Outcome:
    """Counts by tenths of the run."""

    requests: np.ndarray
    served: np.ndarray
    wrong: np.ndarray
    worst: float
    """The largest cumulative share of wrong answers among those served, from the thousandth one served on."""


def simulate(max_error: float, requests: int, seed: int) -> Outcome:
    """One run."""
    world, chance = World(np.random.default_rng(seed)), random.Random(seed)
    verifier, observations = Scripted(), Observed()
    policy = VerifiedPolicy(verifier, max_error, floor=0.0, guards=())
    entries: dict[int, list[tuple[str, float]]] = defaultdict(list)
    asked_intents = world.generator.choice(INTENTS, size=requests, p=world.popularity)
    counts = np.zeros((3, TENTHS), dtype=int)
    worst = 0.0
    for number, asked in enumerate(asked_intents.tolist()):
        tenth = number * TENTHS // requests
        counts[0, tenth] += 1
        near = [(asked, *entry) for entry in entries[asked][-3:]] + [
            (asked ^ 1, *entry) for entry in entries[asked ^ 1][-2:]
        ]
        verifier.next = [world.score(asked, intent, offset) for intent, _, offset in near]
        known = observations.histories([id for _, id, _ in near], verifier.name)
        decisions = policy.decide("", [Neighbour("", 1.0, known[id]) for _, id, _ in near])
        place = best(decisions)
        right = [intent == asked and not world.volatile[asked] for intent, _, _ in near]
        if place is not None and chance.random() >= (decisions[place].error or 0.0):
            counts[1, tenth] += 1
            counts[2, tenth] += not right[place]
            if counts[1].sum() >= 1000:
                worst = max(worst, counts[2].sum() / counts[1].sum())
            continue
        if near:
            seen = place if place is not None else min(range(len(near)), key=lambda each: decisions[each].error or 0.0)
            told = right[seen] != (chance.random() < MISJUDGED)
            score = decisions[seen].score
            observations.add([Observation(near[seen][1], score, told, verifier.name, "answer", place is not None, 0.0)])
            policy.learn(observations, 1)
            if told:
                continue  # What its neighbour's answer serves needs no entry of its own.
            observations.add([Observation(f"{number}", score, told, verifier.name, "answer", False, 0.0)])
        entries[asked].append((f"{number}", float(world.generator.normal(0.0, 0.7))))
    return Outcome(*counts, worst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-errors", default="0.005,0.01,0.02,0.05")
    arguments = parser.parse_args()
    print("max_error   wrong/served  worst so far  wrong/requests  hit rate   hit rate by tenths of the run")
    for max_error in map(float, arguments.max_errors.split(",")):
        outcome = simulate(max_error, arguments.requests, arguments.seed)
        served, wrong = outcome.served.sum(), outcome.wrong.sum()
        tenths = " ".join(f"{100 * rate:4.0f}%" for rate in outcome.served / outcome.requests)
        print(
            f"{max_error:9.1%} {wrong / max(1, served):13.3%} {outcome.worst:13.3%} {wrong / arguments.requests:15.3%}"
            f" {served / arguments.requests:9.1%}   {tenths}"
        )


if __name__ == "__main__":
    main()
