"""When the right answers to the questions of each class of one namespace changed, and how many hits came after.

Times are numbers of the namespace's requests.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

_MAX_CLASSES = 4096
# The rate of change before any is seen, as changes and requests.
_PRIOR_CHANGES, _PRIOR_EXPOSURE = 2.0, 25_000.0
_RATE_DECAY = 1 - 1 / 3000
_LEAST_TOGETHER = 8
_MAX_CHANGES, _MAX_PERIODS = 64, 500

Period = tuple[int, int]
"""The times of two comparisons in a row with one class. The answer was right at the first."""


@dataclass(slots=True)
class Change:
    """A class whose right answer changed.

    Attributes:
        times: of the last confirmation and of each contradiction since, `[n + 1]`.
        errors: estimated probability that a contradiction is an error, `[n]`.
        hits: times of the hits since the last confirmation.
    """

    times: list[int]
    errors: list[float]
    hits: list[int]

    @property
    def period(self) -> Period:
        return self.times[0], self.times[1]

    def hits_after(self, common_changes: Mapping[int, int]) -> float:
        """Return the expected number of hits after the change; see `ChangeHistory.common_changes`.

        A change of its own is equally probable at any time, but that all contradictions before it are errors.
        """
        common = self.common_change(common_changes)
        if common is not None:
            return sum(hit > common for hit in self.hits)
        densities = list(accumulate(self.errors[:-1], mul, initial=1.0))

        def probability_before(time: int) -> float:
            periods = zip(densities, pairwise(self.times), strict=True)
            return sum(density * max(0, min(time, end) - start) for density, (start, end) in periods)

        total = probability_before(self.times[-1])
        return sum(probability_before(hit) / total if total else 0.5 for hit in self.hits)

    def common_change(self, common_changes: Mapping[int, int]) -> int | None:
        """Return the time of the change of most classes that may have changed this one; None if there is no such change."""
        times = [time for time in common_changes if self.times[0] <= time < self.times[-1]]
        return max(times, key=lambda time: (common_changes[time], -time), default=None)


@dataclass(slots=True)
class ChangeHistory:
    """Confirmations, hits, and changes of the classes of one namespace.

    Attributes:
        confirmed: time of the last confirmation, by class.
        hits: times of the hits since the last confirmation, by class.
        num_changes, exposure: changes, and the sum of the ages of classes at their confirmations; both are forgotten slowly.
            Classes that changed together count as one change, because the first of them reveals it.
        found_wrong: expected number of hits after the changes that were found.
        old_wrong: the part of `found_wrong` without `changes`.
        expected_wrong: sum of the probabilities of an unseen change, at each hit.
        changes: the last ones.
        unchanged: periods of the last confirmations.
    """

    confirmed: dict[str, int] = field(default_factory=dict)
    hits: dict[str, list[int]] = field(default_factory=dict)
    num_changes: float = 0.0
    exposure: float = 0.0
    found_wrong: float = 0.0
    old_wrong: float = 0.0
    expected_wrong: float = 0.0
    changes: list[Change] = field(default_factory=list)
    unchanged: list[Period] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Changes of a class per request of the namespace."""
        return (_PRIOR_CHANGES + self.num_changes) / (_PRIOR_EXPOSURE + self.exposure)

    def unseen_change(self, answer_class: str, clock: int) -> float:
        """Return the probability that the right answer of a class has changed since its last confirmation."""
        return min(1.0, self.rate * max(0, clock - self.confirmed.get(answer_class, clock)))

    def add_hits(self, hits: Iterable[tuple[str, int]], clock: int) -> None:
        """Count hits by class, which were served until the time `clock`. An unknown class is new."""
        for name, count in hits:
            self.confirmed.setdefault(name, clock)
            self.expected_wrong += count * self.unseen_change(name, clock)
            self.hits.setdefault(name, []).extend([clock] * count)
        self._forget_oldest()

    def confirm(self, answer_class: str, clock: int) -> None:
        """Note that the right answer of a class has not changed until the time `clock`."""
        start = self.confirmed.get(answer_class, clock)
        self.forget(answer_class)
        self.exposure = self.exposure * _RATE_DECAY + clock - start
        self.num_changes *= _RATE_DECAY
        self.unchanged = [*self.unchanged[1 - _MAX_PERIODS :], (start, clock)]
        self.confirmed[answer_class] = clock
        self._forget_oldest()

    def forget(self, answer_class: str) -> None:
        self.confirmed.pop(answer_class, None)
        self.hits.pop(answer_class, None)

    def _forget_oldest(self) -> None:
        while len(self.confirmed) > _MAX_CLASSES:
            self.forget(next(iter(self.confirmed)))

    def add_change(
        self, answer_class: str, times: Sequence[int], errors: Sequence[float], doubted: Iterable[tuple[str, int]]
    ) -> None:
        """Count the change of a class after contradictions at these times; see `Change`.

        It may show that other changes happened together, so the hits after these are estimated again.

        Args:
            doubted: other classes, with the time of the first contradiction since their last confirmation.
        """
        start = self.confirmed.get(answer_class, times[0])
        self.changes.append(Change([start, *times], list(errors), self.hits.pop(answer_class, [])))
        periods = [(self.confirmed[name], time) for name, time in doubted if name in self.confirmed]
        common = self.common_changes([*(change.period for change in self.changes), *periods])
        time = self.changes[-1].common_change(common)
        self.num_changes += 1.0 if time is None else 1 / common[time]
        wrong = [change.hits_after(common) for change in self.changes]
        self.found_wrong = self.old_wrong + sum(wrong)
        if len(wrong) > _MAX_CHANGES:
            self.old_wrong += wrong[0]
            del self.changes[0]

    def common_changes(self, changed: Collection[Period]) -> dict[int, int]:
        """Return the times at which several classes may have changed together, with their number.

        At such a time, more periods end with a contradiction (`changed`) than with a confirmation.
        """
        common = {}
        for time, _ in changed:
            together = sum(start <= time < end for start, end in changed)
            if together >= max(_LEAST_TOGETHER, 1 + sum(start <= time < end for start, end in self.unchanged)):
                common[time] = together
        return common

    def document(self) -> list[Any]:
        return [
            self.confirmed,
            self.hits,
            self.num_changes,
            self.exposure,
            self.found_wrong,
            self.old_wrong,
            self.expected_wrong,
            [astuple(change) for change in self.changes],
            self.unchanged,
        ]

    @classmethod
    def from_document(cls, document: list[Any]) -> "ChangeHistory":
        history = cls(*document)
        history.changes = [Change(*values) for values in document[-2]]
        history.unchanged = [(start, end) for start, end in document[-1]]
        return history
