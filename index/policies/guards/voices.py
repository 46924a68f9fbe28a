"""Detects an exchange of the agent and the object of a verb: `how do I pay` and `how do I get paid`."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.index.policies.guards.words import IRREGULAR_VERBS, base_forms, cached_by_text, words

_CLAUSE = re.compile(
    r"\b(?:(?P<auxiliary>can|could|do|does|did|will|would|should|shall|must|may|might|am|are|was|were|have|had)"
    r"(?:n't| not)? (?P<subject>i|we|you)|(?:how|where|when) to|(?:i|we)(?: would|'d)? (?:want|need|like|hope|expect) to)"
    r"(?P<rest>(?: [\w'-]+)+)"
)
_BE = frozenset("am are was were".split())
_PASSIVE = frozenset("get got getting be been being become".split())
_ADVERBS = frozenset(
    "not also still already just even ever really actually usually normally always automatically".split()
)
_OBJECT = frozenset("a an the my our your his her their someone somebody people others".split())
_MIDDLE = frozenset(
    "start register enrol enroll connect log sign subscribe unsubscribe marry divorce move change involve close open train"
    " qualify prepare dress list verify upgrade check".split()
)
"""Verbs that mean the same without an object as in the passive: `how do I register`, `how do I get registered`."""
_CONVERSES = {
    frozenset(pair.split())
    for pair in (
        "teach learn",
        "pay earn",
        "pay charge",
        "pay get",
        "pay receive",
        "send get",
        "give get",
        "give receive",
    )
}
"""Pairs of verbs for the two sides of a deal. With the same subject, they are opposites."""
_SIDES = frozenset().union(*_CONVERSES)


@dataclass(frozen=True, slots=True)
class _Verb:
    forms: frozenset[str]
    is_passive: bool
    is_of_addressee: bool
    has_object: bool


def voices_differ(question: str, cached_question: str) -> bool:
    """Whether a subject is the agent of a verb in one question, and its object in the other one."""
    ours, theirs = _verb(question), _verb(cached_question)
    if ours is not None and theirs is not None and ours.is_passive != theirs.is_passive:
        active = theirs if ours.is_passive else ours
        common, is_same_side = ours.forms & theirs.forms, ours.is_of_addressee == theirs.is_of_addressee
        return bool(common) and is_same_side and (active.has_object or _MIDDLE.isdisjoint(common))
    return _has_converse_verbs(words(question), words(cached_question))


@cached_by_text
def _verb(text: str) -> _Verb | None:
    match = _CLAUSE.search(text.lower().replace("’", "'"))
    tokens = [word for word in match["rest"].split() if word not in _ADVERBS] if match is not None else []
    if match is None or not tokens:
        return None
    is_passive = tokens[0] in _PASSIVE or match["auxiliary"] in _BE
    if tokens[0] in _PASSIVE:
        tokens = tokens[1:]
    if not tokens or (is_passive and not _is_participle(tokens[0])):
        return None
    return _Verb(base_forms(tokens[0]), is_passive, match["subject"] == "you", bool(_OBJECT.intersection(tokens[1:2])))


def _is_participle(word: str) -> bool:
    return (word.endswith(("ed", "en")) and len(word) > 4) or word in IRREGULAR_VERBS


def _has_converse_verbs(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    if _SIDES.isdisjoint(ours) or _SIDES.isdisjoint(theirs):
        # As in most questions.
        return False
    # After `do` and `can`, verbs have their base form: `paid` may be passive.
    return any(
        frozenset((word, other)) in _CONVERSES and _word_before(ours, word) == _word_before(theirs, other)
        for word in Counter(ours) - Counter(theirs)
        for other in Counter(theirs) - Counter(ours)
    )


def _word_before(tokens: Sequence[str], word: str) -> str:
    place = tokens.index(word)
    return tokens[place - 1] if place else ""
