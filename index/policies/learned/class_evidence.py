"""Evidence about answer classes (see `answer_classes`): that an answer has changed, or that a guard vetoes it wrongly."""

from collections.abc import Iterable
from dataclasses import dataclass, field

_PRIOR_ODDS = 0.002
_CHANGE_RATE = 0.001
"""Added before each comparison to the odds that a class's answer has changed, because it may change at any time."""
_DIFFERS = 0.9
"""Probability that a fresh answer differs from a stored answer of a class whose answer has changed."""
_LEAST_ERROR = 0.02
"""Minimum probability that two answers of an unchanged class differ, because models generate at random."""
_MAX_ODDS = 1e6
_OBSOLETE_ODDS = 1000.0


@dataclass(slots=True)
class ClassEvidence:
    """Evidence about the answer classes of one namespace.

    Attributes:
        odds: the odds that a class's answer has changed, by class; a class without evidence has no item.
        lifted_guards: pairs (class, guard). The guard's vetoes are ignored for the class, because the answers were equal
            despite its last veto.
    """

    odds: dict[str, float] = field(default_factory=dict)
    lifted_guards: set[tuple[str, str]] = field(default_factory=set)

    def change_probability(self, name: str) -> float:
        """Return the probability, 0 to 1, that a class's answer has changed.

        The prior probability is subtracted, so that the result is 0 for a class without evidence.
        """
        odds = self.odds.get(name, _PRIOR_ODDS)
        return max(0.0, odds / (1 + odds) - _PRIOR_ODDS)

    def is_obsolete(self, name: str) -> bool:
        """Whether a class's answer has almost certainly changed; the entries of the class are then not served."""
        return self.odds.get(name, 0.0) >= _OBSOLETE_ODDS

    def add_comparison(self, name: str, error: float, right: bool) -> None:
        """Update the odds that a class's answer has changed, after a comparison with a fresh answer.

        Args:
            error: estimated probability that the two answers differ.
            right: the two answers are equal.
        """
        expected = max(error, _LEAST_ERROR)
        ratio = (1 - _DIFFERS) / (1 - min(expected, 0.99)) if right else _DIFFERS / expected
        self._set_odds(name, (self.odds.get(name, _PRIOR_ODDS) + _CHANGE_RATE) * ratio)

    def add_member(self, name: str) -> None:
        """Reduce a class's odds, because a fresh answer was assigned to the class."""
        if name in self.odds:
            self._set_odds(name, self.odds[name] * (1 - _DIFFERS))

    def _set_odds(self, name: str, odds: float) -> None:
        if odds <= _PRIOR_ODDS:
            self.odds.pop(name, None)
        else:
            self.odds[name] = min(odds, _MAX_ODDS)

    def effective_veto(self, name: str, guards: Iterable[str]) -> str | None:
        """Return the first of the guards that vetoed whose vetoes are not ignored for a class; None without one."""
        return next((guard for guard in guards if (name, guard) not in self.lifted_guards), None)

    def update_guards(self, name: str, guards: Iterable[str], right: bool) -> None:
        for guard in guards:
            (self.lifted_guards.add if right else self.lifted_guards.discard)((name, guard))
