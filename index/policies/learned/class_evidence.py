from collections.abc import Iterable
from dataclasses import dataclass, field

_PRIOR_ODDS = 0.002
_ODDS_PER_COMPARISON = 0.001  # An answer may change at any time.
_DIFFERENCE_IF_CHANGED = 0.9
_MIN_DIFFERENCE = 0.02  # Models generate at random.
_MAX_ODDS = 1e6
_OBSOLETE_ODDS = 1000.0


@dataclass(slots=True)
class ClassEvidence:
    """Evidence from comparisons about the answer classes (see `answer_classes`) of one namespace.

    Attributes:
        odds: odds that the right answer has changed since it was stored, by class; a class without evidence has no item.
        lifted_guards: pairs of a class and a guard. The guard's vetoes are ignored, because the last vetoed answer was right.
    """

    odds: dict[str, float] = field(default_factory=dict)
    lifted_guards: set[tuple[str, str]] = field(default_factory=set)

    def change_probability(self, name: str) -> float:
        """Return the probability that a class's answer has changed since it was stored; 0 without evidence."""
        odds = self.odds.get(name, _PRIOR_ODDS)
        return max(0.0, odds / (1 + odds) - _PRIOR_ODDS)

    def is_obsolete(self, name: str) -> bool:
        """Whether a class's answer has almost certainly changed; the entries of the class are then not served."""
        return self.odds.get(name, 0.0) >= _OBSOLETE_ODDS

    def add_comparison(self, name: str, error: float, right: bool) -> None:
        """Update the odds of a change, after an answer of the class was compared with a fresh answer.

        Args:
            error: estimated probability that the two answers differ.
            right: the two answers are equal.
        """
        expected = max(error, _MIN_DIFFERENCE)
        ratio = (1 - _DIFFERENCE_IF_CHANGED) / (1 - min(expected, 0.99)) if right else _DIFFERENCE_IF_CHANGED / expected
        self._set_odds(name, (self.odds.get(name, _PRIOR_ODDS) + _ODDS_PER_COMPARISON) * ratio)

    def add_member(self, name: str) -> None:
        """Reduce the odds of a change, because a fresh answer was assigned to the class."""
        if name in self.odds:
            self._set_odds(name, self.odds[name] * (1 - _DIFFERENCE_IF_CHANGED))

    def _set_odds(self, name: str, odds: float) -> None:
        if odds <= _PRIOR_ODDS:
            self.odds.pop(name, None)
        else:
            self.odds[name] = min(odds, _MAX_ODDS)

    def effective_veto(self, name: str, guards: Iterable[str]) -> str | None:
        """Return the first of the vetoing guards that is not lifted for a class; None if all are lifted."""
        return next((guard for guard in guards if (name, guard) not in self.lifted_guards), None)

    def update_guards(self, name: str, guards: Iterable[str], right: bool) -> None:
        for guard in guards:
            (self.lifted_guards.add if right else self.lifted_guards.discard)((name, guard))
