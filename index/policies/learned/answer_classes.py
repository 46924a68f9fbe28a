"""Answer classes: sets of entries with equal answers, named by the id of their first entry.

A fresh answer is compared with stored answers to find its class.
"""

import hashlib
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from kvproxy.index.models.languages import language_of
from kvproxy.index.models.verifier.multilingual import UNSPACED, content_words, is_surely_english, new_words
from kvproxy.index.policies.guards import GUARDS

One = TypeVar("One")
Other = TypeVar("Other")
Result = TypeVar("Result")
_NOISE = re.compile(r"[\W_]+")
_OTHER_CLASSES = 8


@dataclass(frozen=True, slots=True)
class ClassAssignment:
    """The result of comparing a fresh answer with the answers of its question's neighbours.

    Attributes:
        right: whether the answer of the neighbour about which the policy decided is right: the fresh answer equals it, or, if
            that comparison is undecided, another answer of its class. None if no comparison with this class was decided.
        joined: class of the fresh answer; None if it equals none of the compared answers.
        is_outlier: the fresh answer differs from that neighbour's answer, but equals another answer of its class.
        merged: other classes whose answers equal the fresh answer and the answer of `joined`.
    """

    right: bool | None
    joined: str | None
    is_outlier: bool = False
    merged: tuple[str, ...] = ()


Comparisons = Generator[tuple[int, int | None], bool | None, ClassAssignment]
"""Yields pairs of neighbours' indexes whose answers to compare, receives the results, and returns the assignment.

The second index is None for the fresh answer. A result is None if the comparison is undecided.
"""


def assign_class(judged_index: int, classes: Sequence[str], num_neighbours: int | None = None) -> Comparisons:
    """Find the class of a fresh answer, and other classes with an equal answer, which become one class.

    The policy decided about the neighbour `judged_index`; `classes` has the class of each neighbour's answer, nearest neighbour
    first. After `num_neighbours`, it may have classes to compare if the neighbour's answer is not right: those that may have
    succeeded its class, because the neighbours of a changed answer have the old one. A merge requires that three answers equal
    each other, because one mistaken comparison must not join two classes.
    """
    own = classes[judged_index]
    right = first = yield judged_index, None
    equal_places = [judged_index] if right else []
    second = next((place for place, name in enumerate(classes) if name == own and place != judged_index), None)
    if not right and second is not None:
        also_equal = yield second, None
        right = also_equal if right is None else right
        equal_places += [second] if also_equal else []
    is_outlier = first is False and bool(equal_places)
    merged = []
    others = [name for name in dict.fromkeys(classes[:num_neighbours]) if name != own][:_OTHER_CLASSES]
    if not right and num_neighbours is not None:
        others = list(dict.fromkeys([*classes[num_neighbours:], *others]))
    for name in others:
        place = classes.index(name)
        if not (yield place, None):
            continue
        if equal_places and (yield place, equal_places[0]):
            merged.append(name)
        equal_places.append(place)
    joined = classes[equal_places[0]] if equal_places else None
    return ClassAssignment(right, joined, is_outlier, tuple(merged))


def run_comparisons(
    comparisons: Generator[tuple[One, Other], bool | None, Result], compare: Callable[[One, Other], bool | None]
) -> Result:
    equal: bool | None = None
    while True:
        try:
            pair = comparisons.send(equal)
        except StopIteration as end:
            result: Result = end.value
            return result
        equal = compare(*pair)


@lru_cache(maxsize=16)  # A fresh answer is compared with several.
def text_digest(text: str) -> str:
    """Return a digest of a text, which ignores case, spaces, and punctuation."""
    return hashlib.sha256(_NOISE.sub(" ", text.casefold()).strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]


_FEW_WORDS, _FEW_CHARACTERS = 3, 6  # Of Chinese or Japanese, each character counts.
_MAX_COMPARED = 2000  # Characters; the embedder reads less.


def a_few_words_differ(one: str, other: str) -> bool:
    """Whether two answers are equal but for a few words that change the meaning: `lock the card` and `unlock the card`.

    The cosine of their embeddings is often above 0.9. In English, the guards decide whether the meaning changes.
    """
    if max(len(one), len(other)) > _MAX_COMPARED:
        return False
    ours, theirs = content_words(one), content_words(other)
    few = _FEW_CHARACTERS if language_of(one) in UNSPACED else _FEW_WORDS
    if max(len(ours - theirs), len(theirs - ours)) > few:
        return False
    if any(guard.vetoes(one, other) for guard in GUARDS):
        return True
    are_english = is_surely_english(one) and is_surely_english(other)
    return not are_english and bool(new_words(one, [other]) or new_words(other, [one]))
