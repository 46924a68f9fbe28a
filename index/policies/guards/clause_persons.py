"""Detects an exchange of user and addressee in a subordinate clause: `is my fee refunded if I cancel`, `.. if you cancel`.

In `is it bad if you skip breakfast`, *you* is anybody, and the question equals `is it bad if I skip breakfast`.
"""

import re
from dataclasses import dataclass
from itertools import product

from kvproxy.index.policies.guards.words import FUNCTION_WORDS, base_forms, cached_by_text

AUXILIARIES = r"(?:can|could|do|does|did|will|would|should|shall|must|may|might|am|are|was|were|have|had)"
FIRST = re.compile(r"\b(?:i|we|me|(?<!\bthe )us|my|mine|our|ours|myself|ourselves)\b")
DEFINITE = re.compile(r"^(?: (?:to \w+|for|up|out|off|down|back|over))* the \w+(?! of\b)")
_SECOND = re.compile(r"\b(?:(?<!\bthank )(?<!\blove )you|your|yours|yourself|yourselves)\b")
# The subject of a clause that asks nothing: `if I cancel`, `the parcel you sent`, but not `can I cancel`.
_SUBJECT = re.compile(r"(?<!\S)(?<!\bthank )(?P<subject>i|we|you)(?:'(?:m|re|ve|d|ll))?(?=(?P<clause>(?: [\w']+)+))")
_ASKED = re.compile(rf"\b{AUXILIARIES}(?:n't| not)? $")
_BE = frozenset("am are was were be been being".split())
_SKIPPED = FUNCTION_WORDS | frozenset(
    "have had has want need decide decided wish always already also ever even just never only really still suddenly not".split()
)
_INFINITIVE = re.compile(r"\b(?:how|what|where|when) to\b")
# A business may do these things, or be so: `is there a refund if you cancel`, `what happens when you are late`.
_DEALINGS = frozenset(
    "accept approve bill book call cancel change charge close collect confirm damage decline delay deliver discontinue"
    " dispatch downgrade end exchange extend late modify pay postpone process raise rebook refund reject relocate renew replace"
    " reschedule return send ship suspend switch terminate transfer unavailable update upgrade withdraw".split()
)
# Questions about terms of business, or about who does what: `is a fine due if you park here`, `who cleans after you leave`.
_TERMS = re.compile(
    r"\b(?:who|whose|fees?|fines?|penalty|penalties|(?:sur)?charges?|(?:sur)?charged|prices?|costs?|refunds?|refunded|deposits?"
    r"|discounts?|free|paid|billed|invoiced?|due|deadlines?|extra|compensation|compensated|vouchers?)\b"
)


@dataclass(frozen=True, slots=True)
class _ComparedClause:
    """Whether the addressee is the subject, the first content word, whether it is passive, and the words after it."""

    is_addressed: bool
    verb: str
    is_passive: bool
    rest: str


def clause_persons_differ(question: str, cached_question: str) -> bool:
    """Whether the user does in a clause of one text in lower case what the addressee does in one of the other text."""
    for ours, theirs in product(_clauses(question), _clauses(cached_question)):
        if ours.is_addressed == theirs.is_addressed or not _have_one_verb(ours, theirs):
            continue
        own, addressed = (cached_question, question) if ours.is_addressed else (question, cached_question)
        if _SECOND.search(own) or FIRST.search(addressed):
            return True
        if _has_other_person(own, FIRST) and _has_other_person(addressed, _SECOND):
            continue  # `can I run when I have a cold`, `can you run when you have a cold`
        if not _may_be_anybody(ours if ours.is_addressed else theirs, addressed):
            return True
    return False


@cached_by_text
def _clauses(text: str) -> tuple[_ComparedClause, ...]:
    return tuple(
        _clause(match["subject"], match.group(), match["clause"].split())
        for match in _SUBJECT.finditer(text)
        if not _ASKED.search(text[: match.start()])
    )


def _clause(subject: str, contracted: str, tokens: list[str]) -> _ComparedClause:
    place = next((place for place, word in enumerate(tokens) if word not in _SKIPPED), len(tokens))
    verb = tokens[place] if place < len(tokens) else ""
    is_passive = contracted.endswith(("'m", "'re")) or not _BE.isdisjoint(tokens[:place])
    rest = "".join(f" {word}" for word in tokens[place + 1 :])
    return _ComparedClause(subject == "you", verb, is_passive and not verb.endswith("ing"), rest)


def _have_one_verb(ours: _ComparedClause, theirs: _ComparedClause) -> bool:
    return ours.is_passive == theirs.is_passive and not base_forms(ours.verb).isdisjoint(base_forms(theirs.verb))


def _has_other_person(text: str, persons: re.Pattern[str]) -> bool:
    """Whether a person stands elsewhere than as the subject of a clause."""
    subjects = {match.start() for match in _SUBJECT.finditer(text) if not _ASKED.search(text[: match.start()])}
    return any(match.start() not in subjects for match in persons.finditer(text))


def _may_be_anybody(clause: _ComparedClause, text: str) -> bool:
    """Whether `you` may stand for anybody: beside no dealings or terms of a business, and no particular thing."""
    if not _DEALINGS.isdisjoint(base_forms(clause.verb)) or _TERMS.search(text):
        return False
    return DEFINITE.search(clause.rest) is None or _INFINITIVE.search(text) is not None
