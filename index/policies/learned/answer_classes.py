"""Classes of equal answers, found by comparing each fresh answer with those of its neighbours."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_NOISE = re.compile(r"[\W_]+")
_OTHER_CLASSES = 2


@dataclass(frozen=True, slots=True)
class ClassAssignment:
    """The result of comparing a fresh answer with those of its neighbours; see `comparison_order`.

    Attributes:
        right: the judged neighbour's answer equals the fresh answer.
        joined: class of the fresh answer; None if it differs from all compared answers.
        is_outlier: the judged neighbour's answer differs, but another answer of its class is equal.
    """

    right: bool
    joined: str | None
    is_outlier: bool


def comparison_order(judged: int, classes: Sequence[str]) -> list[int]:
    """Return the indexes of the neighbours to compare with a fresh answer, until an answer is equal.

    These are the judged neighbour, another neighbour of its class, and the nearest neighbours of two other classes.

    Args:
        judged: index of the neighbour about which the policy decided.
        classes: the class of each neighbour's answer, nearest first.
    """
    own = classes[judged]
    second = [place for place, name in enumerate(classes) if name == own and place != judged][:1]
    others = [classes.index(name) for name in dict.fromkeys(classes) if name != own][:_OTHER_CLASSES]
    return [judged, *second, *others]


def assign_class(places: Sequence[int], are_equal: Sequence[bool], classes: Sequence[str]) -> ClassAssignment:
    """Return the class of a fresh answer: the class of the last compared answer if both are equal.

    Args:
        places: indexes in `classes`, the result of `comparison_order`.
        are_equal: results of the comparisons so far; only the last can be True.
    """
    joined = classes[places[len(are_equal) - 1]] if are_equal[-1] else None
    return ClassAssignment(are_equal[0], joined, not are_equal[0] and joined == classes[places[0]])


def digest(text: str) -> str:
    """Return a digest of a text that ignores case, spaces, and punctuation."""
    return hashlib.sha256(_NOISE.sub(" ", text.casefold()).strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]
