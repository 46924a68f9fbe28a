"""Classes of answers that may no longer be what they were, and guards that a class has shown not to matter to it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

_USUAL = 0.002  # Odds that a class has changed, when nothing speaks for it.
_CHANGES = 0.001  # How much more likely it becomes between two looks.
_DIFFERS = 0.9  # How often a fresh answer differs from a class that has changed.
_LEAST_ERROR = 0.02  # Some answers differ for no reason, however sure the score is.
_MOST = 1e6
_GONE = 1000.0


@dataclass(slots=True)
class Doubts:
    """What single classes have shown.

    Attributes:
        odds: by class, that its answer has changed; only what is above the usual.
        lifted: (class, guard): an answer was judged the same across this guard, and none different since.
    """

    odds: dict[str, float] = field(default_factory=dict)
    lifted: set[tuple[str, str]] = field(default_factory=set)

    def changed(self, name: str) -> float:
        """The probability that a class's answer has changed, as far as it is more than usual."""
        odds = self.odds.get(name, _USUAL)
        return max(0.0, odds / (1 + odds) - _USUAL)

    def gone(self, name: str) -> bool:
        """Whether a class has been different so often that its entries count for nothing."""
        return self.odds.get(name, 0.0) >= _GONE

    def compared(self, name: str, error: float, right: bool) -> None:
        """A class's answer was compared with a fresh one, by Bayes' rule; `error` is what was expected."""
        expected = max(error, _LEAST_ERROR)
        ratio = (1 - _DIFFERS) / (1 - min(expected, 0.99)) if right else _DIFFERS / expected
        self._set(name, (self.odds.get(name, _USUAL) + _CHANGES) * ratio)

    def joined(self, name: str) -> None:
        """A fresh answer is that of this class, whatever was expected."""
        if name in self.odds:
            self._set(name, self.odds[name] * (1 - _DIFFERS))

    def _set(self, name: str, odds: float) -> None:
        if odds <= _USUAL:
            self.odds.pop(name, None)
        else:
            self.odds[name] = min(odds, _MOST)

    def standing(self, name: str, guards: Iterable[str]) -> str | None:
        """The first of the guards that spoke whose veto stands for a class."""
        return next((guard for guard in guards if (name, guard) not in self.lifted), None)

    def across(self, name: str, guards: Iterable[str], right: bool) -> None:
        """An answer was compared across these guards."""
        for guard in guards:
            (self.lifted.add if right else self.lifted.discard)((name, guard))
