"""Answer classes: sets of entries with equal answers. A fresh answer is compared with stored answers to find its class."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_NOISE = re.compile(r"[\W_]+")
_OTHER_CLASSES = 2


@dataclass(frozen=True, slots=True)
class ClassAssignment:
    """The result of comparing a fresh answer with the answers of its question's neighbours.

    Attributes:
        right: the fresh answer equals the answer of the neighbour about which the policy decided.
        joined: class of the fresh answer; None if it differs from all compared answers.
        is_outlier: this neighbour's answer differs, but another answer of its class is equal.
    """

    right: bool
    joined: str | None
    is_outlier: bool


def comparison_order(judged_index: int, classes: Sequence[str]) -> list[int]:
    """Return the indexes of neighbours to compare with a fresh answer. Comparisons end with the first equal answer.

    The order is: `judged_index`, another neighbour of its class, and the nearest neighbour of each of two other classes.

    Args:
        judged_index: index of the neighbour about which the policy decided.
        classes: class of each neighbour's answer, nearest neighbour first.
    """
    own = classes[judged_index]
    second = [place for place, name in enumerate(classes) if name == own and place != judged_index][:1]
    others = [classes.index(name) for name in dict.fromkeys(classes) if name != own][:_OTHER_CLASSES]
    return [judged_index, *second, *others]


def assign_class(places: Sequence[int], are_equal: Sequence[bool], classes: Sequence[str]) -> ClassAssignment:
    """Assign a fresh answer to the class of the answer that it equals.

    Args:
        places: indexes of the neighbours to compare with, from `comparison_order`.
        are_equal: results of the comparisons; fewer than `places` if a comparison found an equal answer, or failed.
        classes: class of each neighbour's answer.
    """
    joined = classes[places[len(are_equal) - 1]] if are_equal[-1] else None
    return ClassAssignment(are_equal[0], joined, not are_equal[0] and joined == classes[places[0]])


def text_digest(text: str) -> str:
    """Return a digest of a text, which ignores case, spaces, and punctuation."""
    return hashlib.sha256(_NOISE.sub(" ", text.casefold()).strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]
