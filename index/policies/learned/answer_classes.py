"""Classes of equal answers: a fresh answer is compared with the answers of neighbours."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_NOISE = re.compile(r"[\W_]+")
_OTHER_CLASSES = 2


@dataclass(frozen=True, slots=True)
class ClassAssignment:
    """The result of comparing a fresh answer with cached ones.

    Attributes:
        joined: class of the fresh answer; None for a new class.
        odd: the judged answer differs from its own class, which equals the fresh one.
    """

    right: bool
    joined: str | None
    odd: bool


def comparison_order(judged: int, classes: Sequence[str]) -> list[int]:
    """Return the neighbours to compare with a fresh answer, in order, until one is equal.

    First the judged neighbour, then another one of its class, then the nearest of two other classes.
    """
    own = classes[judged]
    second = [place for place, name in enumerate(classes) if name == own and place != judged][:1]
    others = [classes.index(name) for name in dict.fromkeys(classes) if name != own][:_OTHER_CLASSES]
    return [judged, *second, *others]


def assign_class(places: Sequence[int], same: Sequence[bool], classes: Sequence[str]) -> ClassAssignment:
    """Return the class of a fresh answer.

    Args:
        same: results so far, by place; only the last one can be true.
    """
    joined = classes[places[len(same) - 1]] if same[-1] else None
    return ClassAssignment(same[0], joined, not same[0] and joined == classes[places[0]])


def digest(text: str) -> str:
    """Ignores case, spaces, and punctuation."""
    return hashlib.sha256(_NOISE.sub(" ", text.casefold()).strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]
