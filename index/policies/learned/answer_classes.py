"""Answer classes: sets of entries with equal answers, named by the id of their first entry.

A fresh answer is compared with stored answers to find its class.
"""

import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field

from kvproxy.index.models.languages import language_of
from kvproxy.index.models.verifier.multilingual import UNSPACED, content_words, is_surely_english, new_words
from kvproxy.index.policies.guards import GUARDS

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


def assign_class(judged_index: int, classes: Sequence[str]) -> Comparisons:
    """Find the class of a fresh answer, and other classes with an equal answer, which become one class.

    The policy decided about the neighbour `judged_index`; `classes` has the class of each neighbour's answer, nearest neighbour
    first. A merge requires that three answers equal each other, because one mistaken comparison must not join two classes.
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
    for name in [name for name in dict.fromkeys(classes) if name != own][:_OTHER_CLASSES]:
        place = classes.index(name)
        if not (yield place, None):
            continue
        if equal_places and (yield place, equal_places[0]):
            merged.append(name)
        equal_places.append(place)
    joined = classes[equal_places[0]] if equal_places else None
    return ClassAssignment(right, joined, is_outlier, tuple(merged))


def run_comparisons(comparisons: Comparisons, compare: Callable[[int, int | None], bool | None]) -> ClassAssignment:
    pair = next(comparisons)
    while True:
        try:
            pair = comparisons.send(compare(*pair))
        except StopIteration as end:
            assignment: ClassAssignment = end.value
            return assignment


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

    def change_probability(self, answer_class: str) -> float:
        odds = self.odds.get(answer_class, _PRIOR_ODDS)
        return max(0.0, odds / (1 + odds) - _PRIOR_ODDS)

    def is_obsolete(self, answer_class: str) -> bool:
        """Whether the right answer to the questions of a class has almost certainly changed."""
        return self.odds.get(answer_class, 0.0) >= _OBSOLETE_ODDS

    def add_comparison(self, answer_class: str, error: float, right: bool) -> None:
        """Update the odds that the right answer of the class has changed, after a comparison with a fresh answer.

        `right`: the answers are equal. `error` was the estimated probability that they differ.
        """
        expected = max(error, _MIN_DIFFERENCE)
        ratio = (1 - _DIFFERENCE_IF_CHANGED) / (1 - min(expected, 0.99)) if right else _DIFFERENCE_IF_CHANGED / expected
        self._set_odds(answer_class, (self.odds.get(answer_class, _PRIOR_ODDS) + _ODDS_PER_COMPARISON) * ratio)

    def add_member(self, answer_class: str) -> None:
        """Reduce the odds that the right answer of the class has changed, because a fresh answer joined it."""
        if answer_class in self.odds:
            self._set_odds(answer_class, self.odds[answer_class] * (1 - _DIFFERENCE_IF_CHANGED))

    def merge(self, answer_class: str, merged: Iterable[str]) -> None:
        """Move the evidence about merged classes to `answer_class`. A fresh answer has just confirmed all of them."""
        for name in merged:
            self.odds.pop(name, None)
            guards = {guard for owner, guard in self.lifted_guards if owner == name}
            self.lifted_guards -= {(name, guard) for guard in guards}
            self.lifted_guards |= {(answer_class, guard) for guard in guards}

    def _set_odds(self, answer_class: str, odds: float) -> None:
        if odds <= _PRIOR_ODDS:
            self.odds.pop(answer_class, None)
        else:
            self.odds[answer_class] = min(odds, _MAX_ODDS)

    def first_unlifted_guard(self, answer_class: str, guards: Iterable[str]) -> str | None:
        """Return the first guard that is not in `lifted_guards` with this class; None if all are."""
        return next((guard for guard in guards if (answer_class, guard) not in self.lifted_guards), None)

    def update_guards(self, answer_class: str, guards: Iterable[str], right: bool) -> None:
        for guard in guards:
            (self.lifted_guards.add if right else self.lifted_guards.discard)((answer_class, guard))
