"""A stream of questions with their answers, replayed in order: what each policy would have served, and how much of it wrongly."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvproxy.index.policies.learned.answer_classes import assign_class, comparison_order, digest
from kvproxy.index.policies.learned.policy import LearnedPolicy
from kvproxy.index.policies.policy import Neighbour, Policy, Ruling
from kvproxy.index.store.observations import Observation

Same = Callable[[int, int], bool]
"""Whether the answers of two lines of the stream are the same."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Questions in order.

    Attributes:
        texts: `[n]`.
        answers: `[n]`, what answers them.
        vectors: `[n, dim]` of the questions.
        same: which answers are the same in truth.
    """

    texts: Sequence[str]
    answers: Sequence[str]
    vectors: np.ndarray
    same: Same

    def reordered(self, order: Sequence[int]) -> "Stream":
        """The same questions in another order."""
        return Stream(
            [self.texts[line] for line in order],
            [self.answers[line] for line in order],
            self.vectors[order],
            lambda one, other: self.same(order[one], order[other]),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of each request of a stream: `[n]` served, and `[n]` wrong (served, and another answer than its own)."""

    served: np.ndarray
    wrong: np.ndarray

    @property
    def hit_rate(self) -> float:
        """Share of the requests served."""
        return float(self.served.mean()) if len(self.served) else 0.0

    @property
    def wrong_share(self) -> float:
        """Share of the served ones that were wrong."""
        return float(self.wrong.sum() / max(1, self.served.sum()))

    @property
    def worst(self) -> float:
        """The largest share of wrong answers among those served so far, from the 500th on; at the end where there are fewer."""
        wrong = self.wrong[self.served]
        shares = np.cumsum(wrong) / np.arange(1, len(wrong) + 1)
        return float(shares[_FROM - 1 :].max()) if len(wrong) >= _FROM else self.wrong_share


_FROM = 500
_AHEAD = 128


class Shelf:
    """The stored questions of a replay, found by their vectors, in the order of the stream."""

    def __init__(self, stream: Stream) -> None:
        self._vectors = np.empty_like(stream.vectors)
        self.lines = np.empty(len(stream.texts), dtype=np.int64)
        self.classes: list[str] = []
        self._stream = stream
        self._ahead = range(0)
        self._known = np.empty((0, 0), dtype=np.float32)

    def near(self, line: int, limit: int) -> tuple[list[int], list[float]]:
        """Places of the nearest stored questions, nearest first, and their cosines."""
        if line not in self._ahead:
            # Many questions at once take a fraction of the time; what is stored meanwhile is added below.
            self._ahead = range(line, min(line + _AHEAD, len(self._stream.vectors)))
            self._known = self._stream.vectors[self._ahead] @ self._vectors[: len(self.classes)].T
        known = self._known[line - self._ahead.start]
        fresh = self._vectors[len(known) : len(self.classes)] @ self._stream.vectors[line]
        cosines = np.concatenate([known, fresh])
        limit = min(limit, len(cosines))
        near = np.argpartition(-cosines, limit - 1)[:limit] if limit else np.empty(0, dtype=np.int64)
        near = near[np.argsort(-cosines[near], kind="stable")]
        return near.tolist(), cosines[near].tolist()

    def drop(self, place: int) -> None:
        """Have a stored question found no more."""
        self._vectors[place] = 0.0
        if place < self._known.shape[1]:
            self._known[:, place] = 0.0

    def add(self, line: int, answer: str) -> None:
        """Store a question whose answer is of a class."""
        place = len(self.classes)
        self._vectors[place] = self._stream.vectors[line]
        self.lines[place] = line
        self.classes.append(answer)


def replay(
    stream: Stream,
    policy: Policy,
    *,
    judge: Same | None = None,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Outcome:
    """Ask every question of a stream: what is not served is answered, stored and compared.

    Args:
        policy: decides; `learned` also learns.
        judge: what it learns from; None for the truth, where equal answers are known by their text too.
        seed: of the policy's exploration.
        progress: told the share of the work that is done.
    """
    chance = random.Random(seed).random
    shelf = Shelf(stream)
    count = len(stream.texts)
    served, wrong = np.zeros(count, bool), np.zeros(count, bool)
    for line in range(count):
        places, cosines = shelf.near(line, policy.reach)
        classes = [shelf.classes[place] for place in places]
        neighbours = [
            Neighbour(stream.texts[shelf.lines[place]], cosine, name)
            for place, cosine, name in zip(places, cosines, classes, strict=True)
        ]
        ruling = policy.decide(stream.texts[line], neighbours) if neighbours else Ruling([], None)
        if ruling.chosen is not None and chance() >= ruling.chance:
            chosen = int(shelf.lines[places[ruling.chosen]])
            served[line], wrong[line] = True, not stream.same(chosen, line)
            if ruling.record is not None and isinstance(policy, LearnedPolicy):
                policy.record_served("", ruling.record.risk)
        else:
            joined = _learn(stream, policy, shelf, line, places, classes, ruling, judge)
            shelf.add(line, joined)
        if line % 100 == 0:
            progress(line / count)
    return Outcome(served, wrong)


def _learn(
    stream: Stream,
    policy: Policy,
    shelf: Shelf,
    line: int,
    places: Sequence[int],
    classes: Sequence[str],
    ruling: Ruling,
    judge: Same | None,
) -> str:
    """Compare a fresh answer with those of its neighbours; the class that it joins."""
    own = digest(stream.answers[line]) if judge is None else f"line {line}"
    noted = ruling.record
    if noted is None or not isinstance(policy, LearnedPolicy):
        return own
    compare = judge or stream.same
    order, found = comparison_order(noted.place, classes), list[bool]()
    for place in order:
        found.append(compare(int(shelf.lines[places[place]]), line))
        if found[-1]:
            break
    settled = assign_class(order, found, classes)
    joined = settled.joined or own
    if settled.odd:
        shelf.drop(places[noted.place])
    policy.learn(
        [
            Observation(
                f"line {shelf.lines[places[noted.place]]}",
                settled.right,
                "answer",
                ruling.chosen is not None,
                0.0,
                answer=classes[noted.place],
                features=noted.features,
                error=noted.error,
                chance=ruling.chance if ruling.chosen is not None else 1.0,
                vetoes=policy.vetoes(stream.texts[line], stream.texts[shelf.lines[places[noted.place]]]),
                joined=joined,
                checked=noted.checked,
                repeat=stream.texts[line] == stream.texts[shelf.lines[places[noted.place]]],
            )
        ]
    )
    return joined
