"""Compares the facts of two answers, because equal answers have many wordings, and one changed fact few other words.

Facts are numbers with their units, code, names, negations, opposites, nouns of one kind, and conditions. The comparison returns
True (equal), False (different), or None (undecided).
"""

import re
import string
from dataclasses import dataclass
from difflib import SequenceMatcher

from kvproxy.index.models.verifier.multilingual import is_surely_english
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.guards.negation_and_opposites import opposite_words
from kvproxy.index.policies.guards.noun_kinds import are_of_one_kind, meanings
from kvproxy.index.policies.guards.numbers_and_code import code_tokens, normalize_number, with_plain_numbers
from kvproxy.index.policies.guards.relations import roles_are_exchanged
from kvproxy.index.policies.guards.words import (
    FUNCTION_WORDS,
    NEGATION,
    NUMBER,
    NUMBER_WORDS,
    UNITS,
    cached_by_text,
    roots,
    words,
)
from kvproxy.index.policies.learned.answer_classes import a_few_words_differ
from kvproxy.index.policies.learned.polite_phrases import without_polite_phrases

MIN_EQUAL_COSINE, _MAX_DIFFERENT_COSINE = 0.65, 0.4
_MIN_EQUAL_OVERLAP = 0.4
_MIN_EQUAL_COSINE_OF_OTHER_LANGUAGES, _MAX_DIFFERENT_COSINE_OF_OTHER_LANGUAGES = 0.9, 0.6
_MAX_UNRELATED_OVERLAP, _MIN_SIMILAR_OVERLAP = 0.1, 0.8  # The cosine is then low or high.
_MAX_EMBEDDED = 400  # Characters.
_COPY_RATIO, _PART_RATIO = 0.75, 0.65
_MAX_SHORT = 6  # Content words.
_MAX_COMPARED = 2000  # Characters.
_RANGE = re.compile(r"(\d)\s*[-–]\s*(?=\d)")
_FENCE = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_SIGN = re.compile(r"[%$€£₹]")
_NO_CENTS = re.compile(r"\.00$")
_NO_UNITS = FUNCTION_WORDS | set(string.ascii_lowercase)
_ADDRESS = re.compile(r"https?://\S+|[\w.+-]{1,64}@\S+|\b\w{1,63}(?:\.\w{1,63})+")
_ATOM = re.compile(r"[\w~-]*\w")
_CONDITIONS = {
    word: group.split()[0]
    for group in ("except apart excluding exception", "unless", "before prior", "after", "only")
    for word in group.split()
}
_YES_OR_NO = re.compile(r"\s*(yes|no)\s*(?:[,.!;:]|$)", re.IGNORECASE)
_POLARITY = re.compile(r"\s*(yes|no)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Facts of one answer. `code` has identifiers, options, and words in code; `polarity` is that of a first `yes` or `no`."""

    numbers: frozenset[str]
    units: frozenset[str]
    code: frozenset[str]
    content: frozenset[str]
    conditions: frozenset[str]
    is_negated: bool
    polarity: str

    @property
    def compared(self) -> tuple[object, ...]:
        return self.numbers, self.units, self.conditions, self.is_negated, self.polarity == "no"


@cached_by_text
def answer_facts(text: str) -> AnswerFacts:
    plain = _RANGE.sub(r"\1 ", text.replace("’", "'"))
    tokens = words(plain)
    numbers = {_NO_CENTS.sub("", normalize_number(number)) for number in NUMBER.findall(plain)}
    numbers |= {NUMBER_WORDS[word] for word in tokens if word in NUMBER_WORDS}
    units = {UNITS[word] for word in (*tokens, *_SIGN.findall(plain)) if word in UNITS and word not in _NO_UNITS}
    conditions = {_CONDITIONS[word] for word in tokens if word in _CONDITIONS}
    content = {word.removesuffix("'s") for word in tokens} - FUNCTION_WORDS - NEGATION - NUMBER_WORDS.keys()
    code = {atom for span in code_tokens(text) | set(_FENCE.findall(text)) for atom in _ATOM.findall(span)}
    polarity = _POLARITY.match(text)
    return AnswerFacts(
        frozenset(numbers),
        frozenset(units),
        frozenset(code),
        frozenset(content - UNITS.keys()),
        frozenset(conditions),
        bool((NEGATION - _CONDITIONS.keys()) & set(tokens)),
        "" if polarity is None else polarity[1].lower(),
    )


@dataclass(frozen=True, slots=True)
class WordVerdicts:
    """Verdicts on two answers by their words, if the cosine of their embeddings is low, medium, or high."""

    low: bool | None
    medium: bool | None
    high: bool | None
    max_low: float = _MAX_DIFFERENT_COSINE
    min_high: float = MIN_EQUAL_COSINE

    @property
    def need_cosine(self) -> bool:
        return not (self.low is self.medium is self.high)

    def at(self, cosine: float) -> bool | None:
        if cosine < self.max_low:
            return self.low
        return self.high if cosine >= self.min_high else self.medium


def answers_equal(one: str, other: str, cosine: float, min_cosine: float = MIN_EQUAL_COSINE) -> bool | None:
    """Return whether two answers state the same facts; None if this is undecided.

    Args:
        cosine: of the embeddings of the answers, see `embedded_part`.
        min_cosine: least cosine of equal answers.
    """
    return compare_words(one, other, min_cosine).at(cosine)


def embedded_part(answer: str) -> str:
    """Return the beginning of an answer, because the time of an embedding grows with the length."""
    return answer if len(answer) <= _MAX_EMBEDDED else answer[:_MAX_EMBEDDED].rsplit(" ", 1)[0]


def compare_words(one: str, other: str, min_cosine: float = MIN_EQUAL_COSINE) -> WordVerdicts:
    """Return the verdicts of `answers_equal` for all cosines."""
    one, other = without_polite_phrases(one), without_polite_phrases(other)
    if not all(is_surely_english(_ADDRESS.sub("", answer)) for answer in (one, other)):
        least = max(min_cosine, _MIN_EQUAL_COSINE_OF_OTHER_LANGUAGES)
        equal = not a_few_words_differ(one, other)
        low = None if _share_numbers(answer_facts(one), answer_facts(other)) else False
        return WordVerdicts(low, None, equal, _MAX_DIFFERENT_COSINE_OF_OTHER_LANGUAGES, least)
    one, other = with_plain_numbers(one), with_plain_numbers(other)
    if _contradict(one, other):
        return WordVerdicts(False, False, False)
    ours, theirs = answer_facts(one), answer_facts(other)
    alone, also_alone = _unmatched(ours.content, theirs.content), _unmatched(theirs.content, ours.content)
    shared = 1 - len(alone) / max(1, len(ours.content)), 1 - len(also_alone) / max(1, len(theirs.content))
    # A short answer may have only the fact of a longer one: *14 days.*
    may_be_part = _share_numbers(ours, theirs) or _is_part(ours, theirs, alone) or _is_part(theirs, ours, also_alone)
    is_short = max(len(ours.content), len(theirs.content)) <= _MAX_SHORT
    if is_short and _state_other_quantity(ours, theirs):
        return WordVerdicts(False, False, False)
    # Short answers may share no word: *It works offline*, *You need no connection*.
    if max(shared) < _MAX_UNRELATED_OVERLAP and not (may_be_part or is_short):
        return WordVerdicts(False, False, False)
    equal_facts = _facts_equal(one, other, alone, also_alone, is_short=is_short)
    high = None if equal_facts and min(shared) < _MIN_EQUAL_OVERLAP else equal_facts
    if equal_facts is False or (min(shared) >= _MIN_SIMILAR_OVERLAP and not is_short):
        return WordVerdicts(high, high, high)
    low = None if may_be_part else False
    return WordVerdicts(low, None, high, _MAX_DIFFERENT_COSINE, min_cosine)


def _share_numbers(ours: AnswerFacts, theirs: AnswerFacts) -> bool:
    """Whether all numbers of one answer are in the other one, and their units are not disjoint."""
    fewer, more = sorted((ours.numbers, theirs.numbers), key=len)
    is_same_unit = not (ours.units and theirs.units) or not ours.units.isdisjoint(theirs.units)
    return bool(fewer) and fewer <= more and is_same_unit


def _state_other_quantity(ours: AnswerFacts, theirs: AnswerFacts) -> bool:
    """Whether both answers state one number with the same unit, but not the same number."""
    return len(ours.numbers) == len(theirs.numbers) == len(ours.units) == 1 and (
        ours.units == theirs.units and ours.numbers != theirs.numbers
    )


def _is_part(short: AnswerFacts, long: AnswerFacts, alone: list[str]) -> bool:
    """Whether an answer has words, and all of them and all its numbers are in another one. `alone` are its other words."""
    return bool(short.content) and not alone and short.numbers <= long.numbers


def _facts_equal(one: str, other: str, alone: list[str], also_alone: list[str], *, is_short: bool) -> bool | None:
    ours, theirs = answer_facts(one), answer_facts(other)
    has_replaced_word = is_short and len(alone) == len(also_alone) == 1
    is_copy = has_replaced_word or _is_near_copy(one, other, _COPY_RATIO)
    has_conflict = _conflict(alone, also_alone)
    if is_copy and (has_conflict or _facts_are_replaced(ours, theirs)):
        return False
    if is_copy and _is_near_copy(one, other, _PART_RATIO) and any(guard.vetoes(one, other) for guard in GUARDS):
        return False
    if has_conflict or ours.compared != theirs.compared or _missing(ours.code, other) or _missing(theirs.code, one):
        return None
    if is_copy and (alone or also_alone or _words_are_reordered(one, other)):
        return None  # A replaced, missing, or moved word may be a fact.
    if roles_are_exchanged(one, other):
        return None
    # Each word of a short answer may be its only fact.
    return None if is_short and alone and also_alone else True


def _contradict(one: str, other: str) -> bool:
    """Whether one answer begins with *Yes*, and the other with *No*."""
    ours, theirs = _YES_OR_NO.match(one), _YES_OR_NO.match(other)
    return ours is not None and theirs is not None and ours[1].lower() != theirs[1].lower()


def _is_near_copy(one: str, other: str, least: float) -> bool:
    if max(len(one), len(other)) > _MAX_COMPARED:
        return False
    matcher = SequenceMatcher(None, words(one), words(other), autojunk=False)
    # The quick ratio is an upper bound.
    return matcher.quick_ratio() >= least and matcher.ratio() >= least


def _words_are_reordered(one: str, other: str) -> bool:
    ours, theirs = ([word for word in words(text) if word not in FUNCTION_WORDS] for text in (one, other))
    return ours != theirs and sorted(ours) == sorted(theirs)


def _facts_are_replaced(ours: AnswerFacts, theirs: AnswerFacts) -> bool:
    pairs = ((ours.numbers, theirs.numbers), (ours.code, theirs.code), (ours.units, theirs.units))
    return (
        any(mine - others and others - mine for mine, others in pairs)
        or ours.is_negated != theirs.is_negated
        or {ours.polarity, theirs.polarity} == {"yes", "no"}
    )


def _missing(code: frozenset[str], text: str) -> set[str]:
    lower = text.lower()
    return {atom for atom in code if atom.lower() not in lower}


def _unmatched(content: frozenset[str], others: frozenset[str]) -> list[str]:
    known_roots = {root for word in others for root in roots(word)}
    known_meanings = {meaning for word in others for meaning in meanings(word)}
    return [
        word for word in content if known_roots.isdisjoint(roots(word)) and known_meanings.isdisjoint(meanings(word))
    ]


def _conflict(alone: list[str], also_alone: list[str]) -> bool:
    return opposite_words(set(alone), set(also_alone)) or any(
        are_of_one_kind(one, other) for one in alone for other in also_alone
    )
