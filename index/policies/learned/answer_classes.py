"""Classes of equal answers."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_NOISE = re.compile(r"[\W_]+")
_OTHER_CLASSES = 2


@dataclass(frozen=True, slots=True)
class ClassAssignment:
    """The class of a fresh answer, after its comparison with the neighbours' answers.

    Attributes:
        right: the judged neighbour's answer equals the fresh one.
        joined: class of the fresh answer; None for a new class.
        is_outlier: the judged answer differs from the fresh one, but another answer of its class equals it.
    """

    right: bool
    joined: str | None
    is_outlier: bool


def comparison_order(judged: int, classes: Sequence[str]) -> list[int]:
    """Return the indexes of the neighbours to compare with a fresh answer, until one equals it.

    The order is the judged neighbour, another neighbour of its class, and the nearest neighbours of two other classes.

    Args:
        judged: index of the neighbour that was or could have been served.
        classes: of the neighbours' answers, nearest first.
    """
    own = classes[judged]
    second = [place for place, name in enumerate(classes) if name == own and place != judged][:1]
    others = [classes.index(name) for name in dict.fromkeys(classes) if name != own][:_OTHER_CLASSES]
    return [judged, *second, *others]


def assign_class(places: Sequence[int], are_equal: Sequence[bool], classes: Sequence[str]) -> ClassAssignment:
    """Return the class of a fresh answer.

    Args:
        places: neighbours in the order of `comparison_order`.
        are_equal: whether the first of these answers equal the fresh answer; only the last can be true.
    """
    joined = classes[places[len(are_equal) - 1]] if are_equal[-1] else None
    return ClassAssignment(are_equal[0], joined, not are_equal[0] and joined == classes[places[0]])


def digest(text: str) -> str:
    """Return a digest of a text that ignores case, spaces, and punctuation."""
    return hashlib.sha256(_NOISE.sub(" ", text.casefold()).strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]
