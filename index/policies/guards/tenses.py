"""Finds the tenses of a question's verbs, by their auxiliary verbs and their forms."""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from kvproxy.index.policies.guards.words import IRREGULAR_VERBS, roots

_TENSES = {
    word: tense
    for tense, line in (
        ("present", "is are am do does isn't aren't don't doesn't"),
        ("past", "was were did had wasn't weren't didn't hadn't"),
        ("future", "will shall"),
    )
    for word in line.split()
}
_PERFECT = frozenset("have has haven't hasn't".split())
AUXILIARIES = frozenset(_TENSES) | _PERFECT
_BE = frozenset("is are am was were be been being isn't aren't wasn't weren't get gets got getting".split())
_MODALS = frozenset("can could may might must should would cannot can't couldn't shouldn't wouldn't to".split())
_DETERMINERS = frozenset("a an the my your his her its our their this these those no some any all".split())
_EQUAL_PARTICIPLES = frozenset("run come become put cut set read let shut hit cost hurt quit".split())
_CLAUSES = frozenset("who which that what when where why how if because while and but or whether".split())
ADVERBS = frozenset("already also always ever just never not recently still yet".split())
_REACH = 4


def count_tenses(tokens: Sequence[str]) -> Counter[str]:
    """Return how often each tense occurs among the auxiliary verbs. The perfect counts as past: `has closed`, `did close`."""
    tenses = Counter[str]()
    for place, word in enumerate(tokens):
        if word in _PERFECT:
            following = [other for other in tokens[place + 1 :] if other not in ADVERBS][:_REACH]
            is_perfect = any(is_past_form(other) or other in _EQUAL_PARTICIPLES for other in following)
            tenses["past" if is_perfect else "present"] += 1
        elif word in _TENSES:
            tenses[_TENSES[word]] += 1
    return tenses


def verb_roots(verb: str) -> frozenset[str]:
    """Return the roots of a verb, and base forms of one with two letters before its ending: `used`, `doing`, `dying`."""
    stem = verb.removesuffix("ed").removesuffix("ing")
    return roots(verb) | {stem, f"{stem}e", f"{stem[:-1]}ie"} if stem != verb and len(stem) == 2 else roots(verb)


def verb_tenses_differ(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether a verb has another tense by its form: `who owns it`, `who owned it`; `I am taking it`, `I took it`."""
    if _is_conditional(ours) or _is_conditional(theirs):
        return False  # `If I moved, what would change` and `if I move, what changes` ask for the same.
    one, other = (
        [(word, place) for place, word in enumerate(tokens) if word not in others]
        for tokens, others in ((ours, theirs), (theirs, ours))
    )
    return any(
        {_tense(ours, place), _tense(theirs, other_place)} in ({"past", "present"}, {"past", "future"})
        for verb, place in one
        for other_verb, other_place in other
        if not verb_roots(verb).isdisjoint(verb_roots(other_verb))
    )


def _is_conditional(tokens: Sequence[str]) -> bool:
    return "if" in tokens and ("would" in tokens or "could" in tokens)


def is_past_form(word: str) -> bool:
    return (
        (word.endswith("ed") and not word.endswith("eed")) or word in IRREGULAR_VERBS or word in ("been", "had", "done")
    )


def _tense(tokens: Sequence[str], place: int) -> str | None:
    """Return the tense of a verb, or None if its auxiliary verb decides, or if it may not be a verb."""
    verb, before = tokens[place], tokens[max(0, place - _REACH) : place]
    if before and before[-1] in _DETERMINERS:
        return None
    clause = takewhile(lambda word: word not in _CLAUSES, reversed(before))
    auxiliary = next((word for word in clause if word in AUXILIARIES | _BE | _MODALS), None)
    if is_past_form(verb):
        return None if auxiliary in _BE or auxiliary in _MODALS else "past"
    if verb.endswith("ing"):
        return _TENSES.get(auxiliary or "") if auxiliary in _BE else None
    if auxiliary in _MODALS or auxiliary in _BE or auxiliary in _PERFECT:
        return None
    return _TENSES.get(auxiliary or "", "present")
