"""Detects one changed common noun of the same kind: `latitude` and `longitude`, `clarinet` and `oboe`."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

from kvproxy.index.policies.guards.words import FUNCTION_WORDS, UNITS, roots, words

_ARTICLES = frozenset("a an the".split())
_BEFORE_VERBS = frozenset("i you we they he she can could must should will would may might shall".split())
_PLURALS = (("s", ""), ("es", ""), ("ies", "y"), ("men", "man"), ("ves", "f"), ("ves", "fe"))
_NO_SYNSETS: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


@cache
def _lines() -> Sequence[str]:
    lines = (Path(__file__).parent / "noun_kinds.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@lru_cache(maxsize=8192)
def _synsets(noun: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the meanings of a noun, and the kinds of these meanings; see training/noun_kinds.py."""
    lines = _lines()
    place = bisect_left(lines, f"{noun} ")
    if place == len(lines) or not lines[place].startswith(f"{noun} "):
        return _NO_SYNSETS
    _, meanings, kinds = lines[place].split()
    return frozenset(meanings.split(",")), frozenset(kinds.split(","))


@lru_cache(maxsize=8192)
def _singular(word: str) -> str:
    forms = {word, *(word.removesuffix(plural) + singular for plural, singular in _PLURALS if word.endswith(plural))}
    return next((form for form in sorted(forms, key=len) if _synsets(form) is not _NO_SYNSETS), word)


def meanings(noun: str) -> frozenset[str]:
    return _synsets(_singular(noun))[0]


def are_synonyms(one: str, other: str) -> bool:
    """Whether two nouns have a common meaning, such as `car` and `automobile`."""
    return not meanings(one).isdisjoint(meanings(other))


def are_of_one_kind(one: str, other: str) -> bool:
    """Whether two nouns are different things of the same kind, such as `clarinet` and `oboe`."""
    (ours, our_kinds), (theirs, their_kinds) = _synsets(_singular(one)), _synsets(_singular(other))
    # One of two synonyms can be the kind of the other, as `gift` and `present`.
    are_related = ours & (theirs | their_kinds) or theirs & our_kinds
    return not are_related and not our_kinds.isdisjoint(their_kinds)


def noun_differs(question: str, cached_question: str) -> bool:
    """Whether one noun is replaced by another noun of its kind: `the function of the clarinet` and `of the oboe`."""
    ours, theirs = (
        Counter(word for word in words(text) if word not in _ARTICLES) for text in (question, cached_question)
    )
    alone, also_alone = list((ours - theirs).elements()), list((theirs - ours).elements())
    if len(alone) != 1 or len(also_alone) != 1:
        return False
    one, other = alone[0], also_alone[0]
    if one in UNITS and other in UNITS:
        return UNITS[one] != UNITS[other]
    if {one, other} & FUNCTION_WORDS or (_is_verb(one, words(question)) and _is_verb(other, words(cached_question))):
        return False
    return roots(one).isdisjoint(roots(other)) and are_of_one_kind(one, other)


def _is_verb(word: str, tokens: Sequence[str]) -> bool:
    """Whether a word follows a subject pronoun or a modal verb, as in `can I order it`."""
    return any(before in _BEFORE_VERBS for before, token in pairwise(tokens) if token == word)
