"""Detects other function words around equal content words: another owner, tense, modal verb, quantifier, or time relation."""

import re
from collections.abc import Mapping

from kvproxy.index.policies.guards.words import FUNCTION_WORDS, IRREGULAR_VERBS, cached_by_text, roots, words


def _groups(*lines: str) -> Mapping[str, str]:
    return {word: line.split()[0] for line in lines for word in line.split()}


_QUANTIFIERS = _groups(
    "all every each everyone everybody everything everywhere",
    "some several any someone somebody something somewhere anyone anybody anything anywhere",
    "only just",
    *"both one most few half either neither".split(),
)
_TENSES = _groups(
    "is are am do does has have isn't aren't", "was were did had wasn't weren't didn't", "will shall won't"
)
_ASPECTS = _groups("being", "been")
_CERTAINTY = _groups("will shall 'll", "may might")
_MODALS = _groups("must mustn't", "can could may might cannot can't couldn't", "should ought shouldn't")
_RELATIONS = _groups("before", "after", "until till", "during while", "since")
_SUBJECTS = _groups("1 i me we us myself", "2 you yourself", "3 he him she they them himself herself themselves")
_OWNERS = _groups("1 my mine our ours", "2 your yours", "3 his her hers their theirs")
_TABLES = (_QUANTIFIERS, _TENSES, _ASPECTS, _RELATIONS, _CERTAINTY)
_RELATION_WORDS = frozenset("prior following once before after until till during while since".split())
_PHRASES = (
    (re.compile(r"\bprior to\b"), "before"),
    (re.compile(r"\b(?:following (?=the|a|an|my|your)|once (?=i|you|we|they|he|she|it|the)|as soon as)"), "after "),
    (re.compile(r"\b(?:have|has|need|needs|had) to\b|\bneed(?=s? not)"), "must"),
    (re.compile(r"\b(?:am|is|are) (?:going to|about to)\b"), "will"),
    (re.compile(r"\b(?:am|is|are) (?:able|allowed) to\b"), "can"),
    (re.compile(r"'ll\b"), " will"),
)
_CHOICE = re.compile(r"^\W*(?:how|what|where|when|which|who|why)\b")
_MAX_OTHER_WORDS = 1


def grammar_differs(question: str, cached_question: str) -> bool:
    """Whether equal content words stand with other function words: `is it open` and `was it open`, `my bill`, `your bill`."""
    ours, theirs = _tokens(question), _tokens(cached_question)
    if ours == theirs or _other_words(ours, theirs) > _MAX_OTHER_WORDS or _other_words(theirs, ours) > _MAX_OTHER_WORDS:
        return False
    if any(_exclude_each_other(_found(table, ours), _found(table, theirs)) for table in _TABLES):
        return True
    if _verb_tenses_differ(ours, theirs):
        return True
    return _modals_differ(ours, theirs, is_choice=_is_choice(question, cached_question)) or _persons_differ(
        ours, theirs
    )


@cached_by_text
def _tokens(text: str) -> tuple[str, ...]:
    plain = text.lower().replace("’", "'")
    for pattern, word in _PHRASES:
        plain = pattern.sub(word, plain)
    return words(plain)


def _other_words(ours: tuple[str, ...], theirs: tuple[str, ...]) -> int:
    known = {root for word in theirs for root in roots(word)}
    content = {word for word in ours if word not in FUNCTION_WORDS and not any(word in table for table in _CLOSED)}
    return sum(known.isdisjoint(roots(word)) for word in content)


_CLOSED = (*_TABLES, _MODALS, _SUBJECTS, _OWNERS)


def _found(table: Mapping[str, str], tokens: tuple[str, ...]) -> set[str]:
    return {table[word] for word in tokens if word in table}


def _exclude_each_other(ours: set[str], theirs: set[str]) -> bool:
    return bool(ours - theirs and theirs - ours)


def _verb_tenses_differ(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Whether the main verb has another tense: `who owns it`, `who owned it`. After an auxiliary verb, it has none."""
    if not (_TENSES.keys() | _MODALS.keys()).isdisjoint((*ours, *theirs)):
        return False
    one, other = set(ours) - set(theirs), set(theirs) - set(ours)
    present = {word for word in one | other if word.endswith("s")}
    past = {word for word in one | other if word.endswith("ed") or word in IRREGULAR_VERBS}
    return any(not roots(verb).isdisjoint(roots(past_verb)) for verb in present for past_verb in past)


def _is_choice(question: str, cached_question: str) -> bool:
    return any(_CHOICE.search(text.lower()) is not None for text in (question, cached_question))


def _modals_differ(ours: tuple[str, ...], theirs: tuple[str, ...], *, is_choice: bool) -> bool:
    one, other = _found(_MODALS, ours), _found(_MODALS, theirs)
    if is_choice:  # `How can I`, `how should I`, and `how do I` ask for the same.
        return {"must", "can"} <= one ^ other and "how" not in (*ours[:1], *theirs[:1])
    return _exclude_each_other(one, other)


def _persons_differ(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    subjects, other_subjects = _found(_SUBJECTS, ours), _found(_SUBJECTS, theirs)
    owners, other_owners = _found(_OWNERS, ours), _found(_OWNERS, theirs)
    if _exclude_each_other(owners, other_owners) and (subjects == other_subjects or "3" in owners ^ other_owners):
        return True
    return _exclude_each_other(subjects, other_subjects) and "3" in subjects ^ other_subjects
