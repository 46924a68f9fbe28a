"""Wrong comparisons of answers that seemed right; a change or a junk answer may explain them.

The error model learns from a surprise only when neither explains it. Otherwise, the answers of all classes would seem less sure
after each change and each junk answer.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from typing import Any

from kvproxy.index.policies.learned.class_evidence import ClassEvidence

_MAX_PENDING = 1000
_SINGLE_COMPARISONS = 300


@dataclass(frozen=True, slots=True)
class Surprise:
    """A wrong comparison: class and features of the stored answer, the comparison's probability, and its number."""

    answer_class: str
    features: tuple[float, ...]
    chance: float
    number: int


@dataclass(slots=True)
class Surprises:
    """The surprises of one namespace that are not explained yet.

    Attributes:
        single: surprises whose fresh answer equals no other answer, by the class of the fresh answer.
        pending: the others. Their class is neither confirmed nor obsolete since.
    """

    single: dict[str, Surprise] = field(default_factory=dict)
    pending: list[Surprise] = field(default_factory=list)

    def add(self, surprise: Surprise, joined: str, *, is_single: bool) -> None:
        if is_single:
            self.single[joined] = surprise
        else:
            self._wait(surprise)

    def add_members(self, answer_classes: Iterable[str]) -> None:
        """Note that other answers equal those of these classes, so they are no junk."""
        for name in answer_classes:
            if name in self.single:
                self._wait(self.single.pop(name))

    def take_errors(self, evidence: ClassEvidence) -> list[Surprise]:
        """Remove and return surprises whose class was confirmed since. Those whose class is obsolete are removed, too."""
        waiting = [surprise for surprise in self.pending if not evidence.is_obsolete(surprise.answer_class)]
        self.pending = [surprise for surprise in waiting if surprise.answer_class in evidence.contradictions]
        return [surprise for surprise in waiting if surprise.answer_class not in evidence.contradictions]

    def explain(self, joined: Iterable[str]) -> None:
        """Remove the surprises of fresh answers with these classes, because a change explains them."""
        for name in joined:
            self.single.pop(name, None)

    def take_singles(self, number: int) -> list[Surprise]:
        """Remove and return surprises whose fresh answer has equalled no other one until the comparison with this number."""
        old = [name for name, surprise in self.single.items() if number - surprise.number >= _SINGLE_COMPARISONS]
        return [self.single.pop(name) for name in old]

    def _wait(self, surprise: Surprise) -> None:
        self.pending.append(surprise)
        del self.pending[:-_MAX_PENDING]

    def document(self) -> dict[str, Any]:
        return {
            "single": {name: astuple(surprise) for name, surprise in self.single.items()},
            "pending": [astuple(surprise) for surprise in self.pending],
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Surprises":
        return cls(
            {name: _surprise(*values) for name, values in document["single"].items()},
            [_surprise(*values) for values in document["pending"]],
        )


def _surprise(answer_class: str, features: list[float], chance: float, number: int) -> Surprise:
    return Surprise(answer_class, tuple(features), chance, number)
