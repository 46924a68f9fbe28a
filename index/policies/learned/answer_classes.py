"""Which class a fresh answer joins: the answers of its question's neighbours are compared with it, a few at most."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_NOISE = re.compile(r"[\W_]+")
_OTHERS = 2  # Further classes that a fresh answer is compared with.


@dataclass(frozen=True, slots=True)
class Settled:
    """What comparisons came to.

    Attributes:
        right: the answer that was judged is that of the fresh one.
        joined: the class that the fresh answer joins; None for one of its own.
        odd: the judged answer differs from its own class, which agrees with the fresh one.
    """

    right: bool
    joined: str | None
    odd: bool


def rivals(judged: int, classes: Sequence[str]) -> list[int]:
    """Places of the neighbours to compare a fresh answer with, in this order, until one is the same.

    The judged one comes first, then another of its class, which tells whether the class or the entry is the odd one, then
    the nearest of other classes.

    Args:
        judged: place of the neighbour whose answer would serve.
        classes: of the neighbours' answers, nearest first.
    """
    own = classes[judged]
    second = [place for place, name in enumerate(classes) if name == own and place != judged][:1]
    others = [classes.index(name) for name in dict.fromkeys(classes) if name != own][:_OTHERS]
    return [judged, *second, *others]


def settle(places: Sequence[int], same: Sequence[bool], classes: Sequence[str]) -> Settled:
    """What follows from comparisons.

    Args:
        places: as from `rivals`, as far as they were compared; the judged one first.
        same: what was found for each; only the last can be the same.
    """
    joined = classes[places[len(same) - 1]] if same[-1] else None
    return Settled(same[0], joined, not same[0] and joined == classes[places[0]])


def digest(text: str) -> str:
    """Equal for texts that differ in case, spaces and punctuation only."""
    return hashlib.sha256(_NOISE.sub(" ", text.casefold()).strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]
