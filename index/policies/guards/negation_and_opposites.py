"""Guards against negations and opposites."""

from collections.abc import Mapping, Set
from functools import cache, lru_cache
from pathlib import Path

from kvproxy.index.policies.guards.words import NEGATION, NEGATIVE_PREFIXES, PREFIX_PAIRS, base_forms, words

_WEAK_OPPOSITES = ({"to", "from"}, {"all", "some"}, {"both", "either"}, {"must", "may"})


@cache
def read_opposites(file_name: str) -> Mapping[str, frozenset[str]]:
    """Return the opposites of each word in a packaged file, `opposites.txt` or `antonyms.txt` (from WordNet)."""
    table: dict[str, set[str]] = {}
    for line in (Path(__file__).parent / file_name).read_text().splitlines():
        if not line.startswith("#"):
            one, other = line.split()
            table.setdefault(one, set()).add(other)
            table.setdefault(other, set()).add(one)
    return {word: frozenset(opposites) for word, opposites in table.items()}


def negation_differs(question: str, cached_question: str) -> bool:
    """Whether one text is negated and the other is not: `does it work` and `does it not work`.

    A negated word equals its opposite: `I can't remember it` and `I forgot it`.
    """
    if bool(NEGATION & set(words(question))) == bool(NEGATION & set(words(cached_question))):
        return False
    return not _negated_opposites(question, cached_question)


def has_opposites(question: str, cached_question: str) -> bool:
    """Whether a word of one question is replaced by its opposite in the other: `enable` and `disable`."""
    ours, theirs = set(words(question)), set(words(cached_question))
    equal = _negated_opposites(question, cached_question)
    return opposite_words(ours - theirs - equal, theirs - ours - equal) or _differs_in_weak_opposite(
        question, cached_question
    )


def _negated_opposites(question: str, cached_question: str) -> set[str]:
    """Return words that only one question has, negated, and their opposites in the other question, which is not negated."""
    differences = set[str]()
    for text, other in ((question, cached_question), (cached_question, question)):
        if NEGATION & set(words(other)):
            continue
        alone, others = set(words(text)) - set(words(other)), set(words(other)) - set(words(text))
        for word in _negated_words(text) & alone:
            opposites = {
                candidate
                for candidate in others
                if _has_opposite({word}, {candidate}) or _has_opposite({candidate}, {word})
            }
            differences |= {word, *opposites} if opposites else set()
    return differences


def _negated_words(text: str) -> set[str]:
    tokens = words(text)
    places = (place for place, word in enumerate(tokens) if word in ("not", "cannot") or word.endswith("n't"))
    return {word for place in places for word in tokens[place + 1 : place + 2]}


def opposite_words(ours: Set[str], theirs: Set[str]) -> bool:
    """Whether one of `ours` is the opposite of one of `theirs`."""
    return _has_opposite(ours, theirs) or _has_opposite(theirs, ours)


def _has_opposite(ours: Set[str], theirs: Set[str]) -> bool:
    forms = {form for word in theirs for form in base_forms(word)}
    return any(not forms.isdisjoint(_opposites_of(form)) for word in ours for form in base_forms(word))


@lru_cache(maxsize=8192)
def _opposites_of(word: str) -> frozenset[str]:
    opposites = {*read_opposites("opposites.txt").get(word, ()), *read_opposites("antonyms.txt").get(word, ())}
    opposites |= {word.removeprefix(no) for no in NEGATIVE_PREFIXES if word.startswith(no) and len(word) - len(no) > 3}
    opposites |= {
        word.removesuffix(one) + other for one, other in (("ful", "less"), ("less", "ful")) if word.endswith(one)
    }
    return frozenset(opposites | {low + word.removeprefix(high) for high, low in PREFIX_PAIRS if word.startswith(high)})


def _differs_in_weak_opposite(question: str, cached_question: str) -> bool:
    ours, theirs = words(question), words(cached_question)
    changed = [{one, other} for one, other in zip(ours, theirs, strict=False) if one != other]
    return len(ours) == len(theirs) and len(changed) == 1 and changed[0] in _WEAK_OPPOSITES
