"""When the right answers to the questions of each class of one namespace changed, and how many hits came after.

Times are numbers of the namespace's requests.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

_MAX_CLASSES = 4096
# The rate of change before any is seen, as changes and requests.
_PRIOR_CHANGES, _PRIOR_EXPOSURE = 2.0, 25_000.0
_RATE_DECAY = 1 - 1 / 3000
# The odds of a change of most answers at once, before a comparison suggests one.
_COMMON_ODDS = 3e-4
_DIFFERENCE_IF_COMMON = 0.8
_MAX_UNWATCHED_RISK = 0.0025
_ACCEPTED_ODDS = 1000.0
_CHANGED_TOGETHER = 0.9
_LEAST_ERROR = 0.05
KNOWN_IF_CHANGED = 0.1
"""The probability that a changed answer is one that other questions had before."""
_FADING = 0.98
_LEAST_PROBABILITY = 0.002
_MAX_STARTED = 200
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
        return sum(self._probabilities_after(common_changes))

    def variance_after(self, common_changes: Mapping[int, int]) -> float:
        """Return the variance of the number of hits after the change."""
        probabilities = sorted(self._probabilities_after(common_changes))
        # Hits after a later one are after the change, too.
        pairs = sum(probability * (2 * later + 1) for later, probability in enumerate(reversed(probabilities)))
        return max(0.0, pairs - sum(probabilities) ** 2)

    def _probabilities_after(self, common_changes: Mapping[int, int]) -> list[float]:
        common = self.common_change(common_changes)
        if common is not None:
            return [float(hit > common) for hit in self.hits]
        densities = list(accumulate(self.errors[:-1], mul, initial=1.0))

        def probability_before(time: int) -> float:
            periods = zip(densities, pairwise(self.times), strict=True)
            return sum(density * max(0, min(time, end) - start) for density, (start, end) in periods)

        total = probability_before(self.times[-1])
        return [probability_before(hit) / total if total else 0.5 for hit in self.hits]

    def common_change(self, common_changes: Mapping[int, int]) -> int | None:
        """Return the time of the change of most classes that may have changed this one; None if there is no such change."""
        times = [time for time in common_changes if self.times[0] <= time < self.times[-1]]
        return max(times, key=lambda time: (common_changes[time], -time), default=None)


@dataclass(slots=True)
class CommonChange:
    """The probability of a change of most answers in a namespace, by Bayes' rule (a CUSUM test).

    Attributes:
        odds: that they have changed since `start`.
        surprised: classes whose answers differed since the answers last seemed unchanged.
        started: classes that did not exist then.
        start: time of the last confirmation of a class that is not in `started`.
        last: the last time at which most answers were right before they changed; 0 if no such change was found.
    """

    odds: float = _COMMON_ODDS
    surprised: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    start: int = 0
    last: int = 0

    def probability(self, confirmed: int | None, clock: int) -> float:
        """Return the probability of a change since the last confirmation of a class; None if it was never confirmed."""
        if confirmed is None:
            # It may have started at any time.
            return _CHANGED_TOGETHER * self.last / max(1, self.last, clock)
        if confirmed < self.last:
            return _CHANGED_TOGETHER
        return self.odds / (1 + self.odds) if self.surprised and confirmed < self.start else 0.0

    @property
    def max_unwatched(self) -> float:
        """How many hits in a row may have no comparison that could show a change: fewer if a change is more probable."""
        return max(1.0, _MAX_UNWATCHED_RISK / self.odds)

    def confirm(self, answer_class: str, is_known: bool, clock: int) -> None:
        if not is_known and len(self.started) < _MAX_STARTED:
            self.started.append(answer_class)
        elif not is_known:
            # Too few old classes were compared to decide.
            self.odds, self.surprised, self.started, self.start = _COMMON_ODDS, [], [], clock
        elif not self.surprised:
            self.start, self.started = clock, []
        elif answer_class not in self.started:
            self.start = clock

    def add_comparison(
        self, answer_class: str, confirmed: int | None, error: float, right: bool, *, was_known: bool = False
    ) -> None:
        """Update the odds after a comparison that was to differ with the probability `error` without such a change.

        Classes that were never confirmed, or are in doubt, do not count. Several differences of one class count as one. A class
        that started meanwhile only shows that no old class is compared, which lets the suspicion fade.
        """
        if confirmed is None or confirmed < self.last or (answer_class in self.surprised and not right):
            return
        if answer_class in self.started:
            self.odds *= _FADING
        elif right:
            self.odds *= min(1.0, (1 - _DIFFERENCE_IF_COMMON) / max(1 - error, 1e-9))
        else:
            likely = _DIFFERENCE_IF_COMMON * (KNOWN_IF_CHANGED if was_known else 1.0)
            self.odds *= max(1.0, likely / max(error, _LEAST_ERROR))
            self.surprised += [] if was_known else [answer_class]
        if self.odds <= _COMMON_ODDS:
            self.odds, self.surprised = _COMMON_ODDS, []
        elif self.odds >= _ACCEPTED_ODDS:
            self.odds, self.last, self.surprised, self.started = _COMMON_ODDS, self.start, [], []


@dataclass(slots=True)
class ChangeHistory:
    """Confirmations, hits, and changes of the classes of one namespace.

    Attributes:
        confirmed: time of the last confirmation, by class.
        started: time of the first answer, by class.
        hits: times of the hits since the last confirmation, by class.
        num_changes, exposure: changes, and the sum of the ages of classes at their confirmations; both are forgotten slowly.
            Classes that changed together count as one change, because the first of them reveals it.
        found_wrong, found_variance: expected number of hits after the changes that were found, and its variance.
        old_wrong, old_variance: the parts of these without `changes`.
        expected_wrong: sum of the probabilities of an unseen change, at each hit.
        common: whether most answers changed at once.
        changes: the last ones.
        together: times of the last common changes, with the number of classes; see `common_changes`.
        unchanged: periods of the last confirmations.
    """

    confirmed: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    hits: dict[str, list[int]] = field(default_factory=dict)
    num_changes: float = 0.0
    exposure: float = 0.0
    found_wrong: float = 0.0
    found_variance: float = 0.0
    old_wrong: float = 0.0
    old_variance: float = 0.0
    expected_wrong: float = 0.0
    common: CommonChange = field(default_factory=CommonChange)
    changes: list[Change] = field(default_factory=list)
    together: dict[int, int] = field(default_factory=dict)
    unchanged: list[Period] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Changes of a class per request of the namespace."""
        return (_PRIOR_CHANGES + self.num_changes) / (_PRIOR_EXPOSURE + self.exposure)

    def unseen_change(self, answer_class: str, clock: int) -> float:
        """Return the probability that the right answer of a class has changed since its last confirmation."""
        confirmed = self.confirmed.get(answer_class)
        alone = 0.0 if confirmed is None else min(1.0, self.rate * max(0, clock - confirmed))
        return alone + (1 - alone) * self.common.probability(confirmed, clock)

    def unseen_wrong_if_served(self, answer_class: str, clock: int) -> float:
        """Return the expected number of hits after an unseen change of a class alone, if it has one more hit now."""
        confirmed = self.confirmed.get(answer_class)
        if confirmed is None:
            return 0.0
        hits = self.hits.get(answer_class, ())
        return self.rate * (sum(hits) + clock - confirmed * (len(hits) + 1))

    @property
    def unseen_wrong(self) -> float:
        """The expected number of hits after changes, among the hits since the last confirmation of their class."""
        rate, wrong = self.rate, 0.0
        for name, hits in self.hits.items():
            confirmed = self.confirmed[name]
            wrong += rate * (sum(hits) - confirmed * len(hits))
            common = self.common.probability(confirmed, confirmed)
            if common > _LEAST_PROBABILITY:
                wrong += common * sum(hit >= self.common.start for hit in hits)
        return wrong

    def add_comparison(self, answer_class: str, error: float, right: bool, *, was_known: bool = False) -> None:
        """Update the probability of a change of most answers at once; see `CommonChange.add_comparison`."""
        self.common.add_comparison(answer_class, self.confirmed.get(answer_class), error, right, was_known=was_known)

    def add_hits(self, hits: Iterable[tuple[str, int]], clock: int) -> None:
        """Count hits by class, which were served until the time `clock`. An unknown class is new."""
        for name, count in hits:
            self.confirmed.setdefault(name, clock)
            self.expected_wrong += count * self.unseen_change(name, clock)
            self.hits.setdefault(name, []).extend([clock] * count)
        self._forget_oldest()

    def confirm(self, answer_class: str, clock: int) -> None:
        """Note that the right answer of a class has not changed until the time `clock`."""
        is_known = answer_class in self.confirmed
        start = self.confirmed.get(answer_class, clock)
        self.forget(answer_class)
        self.exposure = self.exposure * _RATE_DECAY + clock - start
        self.num_changes *= _RATE_DECAY
        self.unchanged = [*self.unchanged[1 - _MAX_PERIODS :], (start, clock)]
        self.common.confirm(answer_class, is_known, clock)
        self.confirmed[answer_class] = clock
        self.started.setdefault(answer_class, clock)
        self._forget_oldest()

    def forget(self, answer_class: str) -> None:
        self.confirmed.pop(answer_class, None)
        self.hits.pop(answer_class, None)

    def merge(self, merged: str, answer_class: str) -> None:
        self.forget(merged)
        starts = [self.started[name] for name in (merged, answer_class) if name in self.started]
        self.started |= {answer_class: min(starts)} if starts else {}
        self.started.pop(merged, None)

    def _forget_oldest(self) -> None:
        while len(self.confirmed) > _MAX_CLASSES:
            self.forget(next(iter(self.confirmed)))
        while len(self.started) > _MAX_CLASSES:
            del self.started[next(iter(self.started))]

    def was_known(self, joined: str, answer_class: str) -> bool:
        """Whether the class `joined` existed when the other class was last confirmed, so it is no new answer to its questions."""
        return self.started.get(joined, math.inf) < self.confirmed.get(answer_class, -1)

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
        self.together = common = self.common_changes([*(change.period for change in self.changes), *periods])
        time = self.changes[-1].common_change(common)
        self.num_changes += 1.0 if time is None else 1 / common[time]
        wrong = [change.hits_after(common) for change in self.changes]
        variances = [change.variance_after(common) for change in self.changes]
        self.found_wrong, self.found_variance = self.old_wrong + sum(wrong), self.old_variance + sum(variances)
        # Without the confirmations of their time, single changes would seem to have happened together.
        while self.changes and (len(self.changes) > _MAX_CHANGES or self.changes[0].times[-1] < self._known_since):
            self.old_wrong += wrong.pop(0)
            self.old_variance += variances.pop(0)
            del self.changes[0]

    @property
    def _known_since(self) -> int:
        """The time since which `unchanged` has all periods."""
        return self.unchanged[0][1] if len(self.unchanged) == _MAX_PERIODS else 0

    def common_changes(self, changed: Collection[Period]) -> dict[int, int]:
        """Return the times at which several classes may have changed together, with their number.

        At such a time, more periods end with a contradiction (`changed`) than with a confirmation. The result remains when the
        confirmations are forgotten.
        """
        common = {time: count for time, count in self.together.items() if time < self._known_since}
        common = dict(sorted(common.items())[-_MAX_CHANGES:])
        for time in (time for time, _ in changed if time >= self._known_since):
            together = sum(start <= time < end for start, end in changed)
            if together >= max(_LEAST_TOGETHER, 1 + sum(start <= time < end for start, end in self.unchanged)):
                common[time] = together
        return common

    def document(self) -> list[Any]:
        return [
            self.confirmed,
            self.started,
            self.hits,
            self.num_changes,
            self.exposure,
            self.found_wrong,
            self.found_variance,
            self.old_wrong,
            self.old_variance,
            self.expected_wrong,
            list(astuple(self.common)),
            [astuple(change) for change in self.changes],
            list(self.together.items()),
            self.unchanged,
        ]

    @classmethod
    def from_document(cls, document: list[Any]) -> "ChangeHistory":
        history = cls(*document)
        history.common = CommonChange(*document[-4])
        history.changes = [Change(*values) for values in document[-3]]
        history.together = dict(document[-2])
        history.unchanged = [(start, end) for start, end in document[-1]]
        return history
