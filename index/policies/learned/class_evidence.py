"""Evidence from comparisons about the answer classes of one namespace: which changed, and which guards do not matter to them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproxy.index.policies.learned.change_history import KNOWN_IF_CHANGED, ChangeHistory

_PRIOR_ODDS = 0.002
_DIFFERENCE_IF_CHANGED = 0.9
_MIN_DIFFERENCE = 0.02  # Models generate at random.
_MAX_ODDS = 1e6
_OBSOLETE_ODDS = 30.0
_MAX_CLASSES = 4096
_MIN_SUCCESSIONS = 2
_SUCCESSION_RATIO = 5.0
_MAX_SUSPECTS = 3
_SUCCESSION_SHARE = 0.75


@dataclass(slots=True)
class Contradictions:
    """The comparisons with a class since its last confirmation: numbers, sums, and the classes of the fresh answers.

    Attributes:
        wrong, expected: contribution to `ServingLevel.wrong` and `ServingLevel.expected`.
        joined: classes of the fresh answers.
        started: the classes among these that did not exist before.
        times, errors: number of the namespace's requests at each contradiction, and its estimated probability.
    """

    wrong: float = 0.0
    expected: float = 0.0
    joined: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    @property
    def successor(self) -> str | None:
        """The new class that most fresh answers joined; None if there is no such class."""
        for name in self.started:
            count = self.joined.count(name)
            if count >= max(_MIN_SUCCESSIONS, _SUCCESSION_SHARE * (len(self.joined) - 1)):
                return name
        return None


@dataclass(slots=True)
class ClassEvidence:
    """Evidence about the answer classes (see `answer_classes`) of one namespace.

    Attributes:
        odds: odds that the right answer has changed since it was stored, by class; a class without evidence has no item.
        lifted_guards: pairs of a class and a guard. The guard's vetoes are ignored, because the last vetoed answer was right.
        contradictions: by class, since its last confirmation.
        successors: the class of the new answer, by obsolete class. The questions of an obsolete class need the new answer.
        probation: successors that no right comparison has confirmed yet; they are not served.
        changes: when answers changed, and how many hits came after.
    """

    odds: dict[str, float] = field(default_factory=dict)
    lifted_guards: set[tuple[str, str]] = field(default_factory=set)
    contradictions: dict[str, Contradictions] = field(default_factory=dict)
    successors: dict[str, str] = field(default_factory=dict)
    probation: set[str] = field(default_factory=set)
    changes: ChangeHistory = field(default_factory=ChangeHistory)

    def change_probability(self, answer_class: str, clock: int = 0) -> float:
        """Return the probability that the right answer of a class has changed, when the namespace had `clock` requests."""
        odds = self.odds.get(answer_class, _PRIOR_ODDS)
        known = max(0.0, odds / (1 + odds) - _PRIOR_ODDS)
        known += (1 - known) * 0.5 * (answer_class in self.probation)
        return 1 - (1 - known) * (1 - self.changes.unseen_change(answer_class, clock))

    def risk_of_changes(self, answer_class: str, clock: int) -> float:
        """Return the expected number of hits that changes make wrong, since the class was confirmed, if it has one more hit."""
        known = self.change_probability(answer_class, clock)
        return max(known, self.changes.unseen_wrong_if_served(answer_class, clock))

    def current_class(self, answer_class: str) -> str:
        """Return the class of the answer that the questions of a class need now."""
        return self.successors.get(answer_class, answer_class)

    def is_obsolete(self, answer_class: str) -> bool:
        """Whether the right answer to the questions of a class has almost certainly changed."""
        return answer_class in self.successors or self.odds.get(answer_class, 0.0) >= _OBSOLETE_ODDS

    @property
    def changed_wrong(self) -> tuple[float, float]:
        """The parts of `ServingLevel.wrong` and `ServingLevel.expected` that changes explain."""
        wrong = expected = 0.0
        for name, contradictions in self.contradictions.items():
            odds = self.odds.get(name, 0.0)
            probability = odds / (1 + odds)
            wrong += contradictions.wrong * probability
            expected += contradictions.expected * probability
        return wrong, expected

    @property
    def wrong_by_change(self) -> tuple[float, float]:
        """The expected number of hits after changes that were found, suspected, or not seen yet, and its variance."""
        wrong = unseen = self.changes.unseen_wrong
        variance = self.changes.found_variance + unseen
        for name in self.contradictions:
            count, odds = len(self.changes.hits.get(name, ())), self.odds.get(name, 0.0)
            # The change is equally probable at any time.
            suspected = odds / (1 + odds) * count / 2
            wrong += suspected
            variance += suspected * (2 * count / 3 - suspected)
        return self.changes.found_wrong + wrong, variance

    def add_comparison(
        self,
        answer_class: str,
        error: float,
        right: bool,
        *,
        counted_error: float = 0.0,
        joined: str = "",
        is_new: bool = False,
        clock: int = 0,
        is_near_obsolete: bool = False,
    ) -> tuple[float, float]:
        """Update the odds that the right answer of the class has changed, after a comparison with a fresh answer.

        Args:
            right: the answers are equal.
            error: the estimated probability that they differ.
            counted_error: contribution of this comparison to `ServingLevel.expected`; 0 if it does not count there.
            joined: class of the fresh answer.
            is_new: the fresh answer starts this class.
            clock: number of the namespace's requests.
            is_near_obsolete: the question probably belongs to an obsolete class.

        Returns:
            Numbers of wrong and expected comparisons that the class contributed to `ServingLevel`, and that its change explains:
            not zero if the class becomes obsolete with this comparison.
        """
        was_known = not right and self.changes.was_known(joined, answer_class)
        expected = max(error, _MIN_DIFFERENCE)
        if right:
            ratio = (1 - _DIFFERENCE_IF_CHANGED) / (1 - min(expected, 0.99))
        else:
            ratio = _DIFFERENCE_IF_CHANGED * (KNOWN_IF_CHANGED if was_known else 1.0) / expected
        if not right and not is_new and joined in self.suspected_successors(answer_class):
            ratio *= _SUCCESSION_RATIO
        was_obsolete = self.is_obsolete(answer_class)
        odds = max(self.odds.get(answer_class, 0.0), _PRIOR_ODDS)
        unseen = min(self.changes.unseen_change(answer_class, clock), 0.99)
        if not is_near_obsolete:
            error = expected + (1 - expected) * odds / (1 + odds)
            self.changes.add_comparison(answer_class, error, right, was_known=was_known)
        if not right:
            odds = max(odds, unseen / (1 - unseen))
        is_first = not right and not was_obsolete and answer_class not in self.contradictions
        # Several contradictions show the successor.
        self._set_odds(answer_class, min(odds * ratio, _OBSOLETE_ODDS / 2) if is_first else odds * ratio)
        if right:
            self.confirm(answer_class, clock)
            self.probation.discard(answer_class)
            return 0.0, 0.0
        if answer_class in self.probation:
            self.probation.remove(answer_class)
            for name in [name for name, target in self.successors.items() if target == answer_class]:
                del self.successors[name]
        contradictions = self.contradictions.setdefault(answer_class, Contradictions())
        contradictions.wrong += counted_error > 0 and not was_known
        contradictions.expected += 0.0 if was_known else counted_error
        contradictions.joined.append(joined)
        contradictions.times.append(clock)
        contradictions.errors.append(expected)
        contradictions.started += [joined] if is_new else []
        if was_obsolete or not self.is_obsolete(answer_class):
            return 0.0, 0.0
        return self._become_obsolete(answer_class)

    def _become_obsolete(self, answer_class: str) -> tuple[float, float]:
        contradictions = self.contradictions.pop(answer_class)
        doubted = [(name, others.times[0]) for name, others in self.contradictions.items()]
        self.changes.add_change(answer_class, contradictions.times, contradictions.errors, doubted)
        successor = contradictions.successor
        if successor is not None:
            if successor not in self.successors.values():
                self.probation.add(successor)
            for name in [name for name, target in self.successors.items() if target == answer_class]:
                self.successors[name] = successor
            self.successors[answer_class] = successor
            self.successors.pop(successor, None)
            _keep_newest(self.successors)
        return contradictions.wrong, contradictions.expected

    def suspected_successors(self, answer_class: str) -> Sequence[str]:
        """Return the new classes of fresh answers that differed from this class since its last confirmation, newest first."""
        contradictions = self.contradictions.get(answer_class)
        return [] if contradictions is None else contradictions.started[: -_MAX_SUSPECTS - 1 : -1]

    def confirm(self, answer_class: str, clock: int) -> None:
        """Note that the right answer of a class has not changed, at the namespace's request number `clock`."""
        self.changes.confirm(answer_class, clock)
        if answer_class not in self.odds:
            self.contradictions.pop(answer_class, None)

    def add_member(self, answer_class: str, clock: int = 0) -> None:
        """Reduce the odds that the right answer of the class has changed, because a fresh answer joined it."""
        if answer_class in self.odds:
            self._set_odds(answer_class, self.odds[answer_class] * (1 - _DIFFERENCE_IF_CHANGED))
            if self.odds.get(answer_class, 0.0) < _OBSOLETE_ODDS:
                self.successors.pop(answer_class, None)
        self.confirm(answer_class, clock)

    def merge(self, answer_class: str, merged: Iterable[str]) -> None:
        """Move the evidence about merged classes to `answer_class`. A fresh answer has just confirmed all of them."""
        for name in merged:
            for table in (self.odds, self.contradictions, self.successors):
                table.pop(name, None)
            self.probation.discard(name)
            self.changes.merge(name, answer_class)
            guards = {guard for owner, guard in self.lifted_guards if owner == name}
            self.lifted_guards -= {(name, guard) for guard in guards}
            self.lifted_guards |= {(answer_class, guard) for guard in guards}
            for contradictions in self.contradictions.values():
                contradictions.joined = [answer_class if joined == name else joined for joined in contradictions.joined]
                contradictions.started = [
                    answer_class if started == name else started for started in contradictions.started
                ]
            for obsolete in [replaced for replaced, target in self.successors.items() if target == name]:
                self.successors[obsolete] = answer_class

    def _set_odds(self, answer_class: str, odds: float) -> None:
        if odds <= _PRIOR_ODDS:
            self.odds.pop(answer_class, None)
        else:
            self.odds[answer_class] = min(odds, _MAX_ODDS)

    def first_unlifted_guard(self, answer_class: str, guards: Iterable[str]) -> str | None:
        """Return the first guard that is not in `lifted_guards` with this class; None if all are."""
        return next((guard for guard in guards if (answer_class, guard) not in self.lifted_guards), None)

    def update_guards(self, answer_class: str, guards: Iterable[str], right: bool) -> None:
        for guard in guards:
            (self.lifted_guards.add if right else self.lifted_guards.discard)((answer_class, guard))

    def document(self) -> dict[str, Any]:
        return {
            "odds": self.odds,
            "lifted": sorted(self.lifted_guards),
            "contradictions": {
                name: [
                    contradictions.wrong,
                    contradictions.expected,
                    contradictions.joined,
                    contradictions.started,
                    contradictions.times,
                    contradictions.errors,
                ]
                for name, contradictions in self.contradictions.items()
            },
            "successors": self.successors,
            "probation": sorted(self.probation),
            "changes": self.changes.document(),
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "ClassEvidence":
        return cls(
            document["odds"],
            {(name, guard) for name, guard in document["lifted"]},
            {name: Contradictions(*values) for name, values in document["contradictions"].items()},
            document["successors"],
            set(document["probation"]),
            ChangeHistory.from_document(document["changes"]),
        )


def _keep_newest(table: dict[str, Any]) -> None:
    while len(table) > _MAX_CLASSES:
        del table[next(iter(table))]
