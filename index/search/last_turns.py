"""Decides whether the last turn of a conversation needs earlier turns, and whether two last turns ask for the same."""

import re

from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, NEGATION, words
from kvproxy.index.policies.wording import are_equal_wordings
from kvproxy.index.search.earlier_statements import is_question
from kvproxy.index.search.turn_words import content_words, names_of, quantities, roots_of, unknown_words

_REFERENCES = frozenset(
    "it its it's this these those they them their they're he him his she her hers there then else another again ones former"
    " latter both either neither so here other others such that's".split()
)
_QUANTIFIERS = frozenset("each every all any some many much more most".split())
_OWN = frozenset("my mine our ours i'm i've i'd i'll am myself".split())
_CONTINUATION = re.compile(
    r"^\W*(?:and|but|so|then|or|ok|okay|also|what about|how about|no|yes|yeah|yep|sure|right|cool|great|thanks|because|well|now"
    r"|actually|wait)\b",
    re.IGNORECASE,
)
_ASKS = (
    r"(?:how|what|what's|where|when|which|who|why|(?:is|are|does|did|can|could|may|should|will|would|has|have)"
    r"|do(?= (?:i|you|we|they|the|a|an|my|your|our|people|all|any)\b)|explain|describe|tell|list|give|show|name|define)\b"
)
_QUESTION = re.compile(rf"^\W*{_ASKS}", re.IGNORECASE)
_LATER_QUESTION = re.compile(
    rf"^\W*(?:(?:and|but|so|ok|okay|well|also|right|done|yes|no)[,. ]+)*{_ASKS}", re.IGNORECASE
)
_DEMONSTRATIVE = re.compile(
    r"\bthat\b(?! (?:i|you|we|they|he|she|it|is|are|can|was|were|has|have|do|does)\b)", re.IGNORECASE
)
_OWN_STATE = re.compile(
    r"\b(?:(?:have|did|was|am|will) i|(?<!how do )i (?:have|was|did|need|get)|do i (?:still|now))\b", re.IGNORECASE
)
_COMPARATIVE = re.compile(r"\binstead of\b|\bat the same time\b|\b(?:to|from) another\b", re.IGNORECASE)
_TOKEN = re.compile(r"[\w'’-]+|[^\w\s]")
_COMPLEMENTS = frozenset("of for to in at from between on with about than".split())
_MAX_COMPLEMENT_DISTANCE = 5
_NO_REFERENCES = tuple(
    re.compile(expression, re.IGNORECASE)
    for expression in (
        _COMPARATIVE.pattern,
        r"(?<=\b(?:is|re)) there\b",
        r"\bthis (?=(?:year|month|week|weekend|season|summer|winter|spring|autumn)\b)",
        r"\bthe (?=(?:world|universe|solar system|internet|moon|sun|earth|horizon|sky)\b)",
    )
)
_COMPLEMENT = re.compile(r"\b(?:for|in|on|from|to|with|between) (?:your )?[a-z]+\W*$", re.IGNORECASE)
_LATER_CLAUSE = re.compile(r", or \w+ (?:i|you|we|people|they|it|he|she)\b.*", re.IGNORECASE)
_MIN_WORDS, _MIN_WORDS_WITH_COMPLEMENT, _MIN_WORDS_WITH_NAME = 4, 3, 2
_PRONOUN = re.compile(
    r"\b(?:that|this|these|those|them|they)\b(?=\W*$|\s*[?.,!]|\s+(?:up|on|off|out|in|down|back|now|for|to|at|by|with|again)\b)",
    re.IGNORECASE,
)
_ADDITIVES = frozenset("also either too".split())


def is_standalone(question: str) -> bool:
    """Whether a question needs no earlier turns: it refers to nothing, is a whole sentence, and names what it is about."""
    if _CONTINUATION.search(question):
        return False
    text = without_fillers(question)
    for expression in _NO_REFERENCES:
        text = expression.sub("", text)
    tokens = set(words(text))
    # Pronouns of a later clause refer to the first one: `Are tickets mobile only, or can I print them?`
    if not _QUESTION.search(text) or not (_REFERENCES | _OWN).isdisjoint(words(_LATER_CLAUSE.sub("", text))):
        return False
    if _DEMONSTRATIVE.search(text) or _OWN_STATE.search(text) or not _all_definite_nouns_are_explained(text):
        return False
    content = {word for word in tokens if word not in FUNCTION_WORDS | _QUANTIFIERS and len(word) > 2}
    least = _MIN_WORDS_WITH_COMPLEMENT if _COMPLEMENT.search(text) else _MIN_WORDS
    return len(content) >= (_MIN_WORDS_WITH_NAME if names_of(text) else least)


def _all_definite_nouns_are_explained(text: str) -> bool:
    tokens = _TOKEN.findall(text)
    for place, token in enumerate(tokens):
        if token.lower() != "the":
            continue
        for following in tokens[place + 1 : place + 1 + _MAX_COMPLEMENT_DISTANCE]:
            if following[0].isupper() or following.lower() in _COMPLEMENTS:
                break
            if not following[0].isalnum():
                return False
        else:
            return False
    return True


def asks(turn: str) -> bool:
    return "?" in turn or _LATER_QUESTION.search(turn) is not None


def ask_equally(turn: str, other: str) -> bool:
    """Whether two last turns end with the same question, and the sentences before it mean the same.

    These are replies or reports: `no, nothing. what should I do?` and `No, nobody has. What should I do?`
    """
    (before, question), (also_before, also_question) = _split_question(turn), _split_question(other)
    if not (before and also_before and are_equal_wordings(question, also_question)):
        return False
    if quantities(before) != quantities(also_before) or any(guard.vetoes(before, also_before) for guard in GUARDS):
        return False
    (content, negated), (also_content, also_negated) = map(_content_and_negation, (before, also_before))
    if not (content or negated) or not (also_content or also_negated):
        return False
    return not (unknown_words(content, roots_of(also_before)) or unknown_words(also_content, roots_of(before)))


def _content_and_negation(reply: str) -> tuple[frozenset[str], bool]:
    return content_words(reply) - NEGATION - _ADDITIVES, not NEGATION.isdisjoint(words(reply))


def _split_question(turn: str) -> tuple[str, str]:
    """Return the sentences, or clauses, before the question at the end of a turn, and the question."""
    before, end, question = turn.strip().rpartition(". ")
    if not end:
        before, end, question = turn.strip().rpartition(", ")
    return (before, question) if is_question(question) and "?" not in before else ("", turn)


def neutral_references(question: str) -> str:
    """Return a last turn with `it` instead of other pronouns for things: `How do I set it up?` for `How do I set that up?`."""
    return _PRONOUN.sub("it", question)
