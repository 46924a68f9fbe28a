import re
from collections import Counter

from kvproxy.index.policies.guards import word_lists
from kvproxy.index.policies.guards.tokenization import cached_by_text, words

_ASKING = frozenset("who whom what which".split())
_SUPPORT = frozenset("do does did".split())
_BE = frozenset("is are was were be been being".split())
_AUXILIARY = _BE | frozenset("am can could will would shall should may might must have has had".split())
_PASSIVE = re.compile(r"\b(?:is|are|was|were|be|been|being|gets?|got|getting)\b.+\bby\b[^?.!]*\w")


def roles_differ(question: str, cached_question: str) -> bool:
    """Whether subject and object are exchanged: `was Tom hit by Ann` and `did Tom hit Ann`."""
    ours, theirs = _align_verbs(_content_words(question), _content_words(cached_question))
    if Counter(ours) != Counter(theirs) or len(ours) < 2:
        return False
    asked = {_asked_role(question), _asked_role(cached_question)}
    return (
        asked == {"subject", "object"} if ours != theirs else _voice_differs(question.lower(), cached_question.lower())
    )


def _align_verbs(ours: list[str], theirs: list[str]) -> tuple[list[str], list[str]]:
    alone, also_alone = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    if alone.total() != 1 or also_alone.total() != 1:
        return ours, theirs
    return ["" if word in alone else word for word in ours], ["" if word in also_alone else word for word in theirs]


def _voice_differs(question: str, cached_question: str) -> bool:
    active, passive = sorted((question, cached_question), key=lambda text: _PASSIVE.search(text) is not None)
    return bool(_PASSIVE.search(passive)) and not (_BE | {"by"}) & set(words(active))


@cached_by_text
def _asked_role(text: str) -> str | None:
    tokens = words(text)
    place = next((place for place, word in enumerate(tokens) if word in _ASKING), None)
    if place is None or place + 1 >= len(tokens):
        return None
    after = tokens[place + 1 : place + (3 if tokens[place] in ("what", "which") else 2)]
    if _SUPPORT & set(after):
        return "object"
    if after[0] in _BE:
        return "object" if tokens[-1] != "by" and "by" in tokens[place + 3 :] else None
    # In `what compensation am I owed`, a noun follows.
    return None if after[0] in word_lists.FUNCTION_WORDS or _AUXILIARY & set(after[1:]) else "subject"


@cached_by_text
def _content_words(text: str) -> list[str]:
    return [word for word in words(text) if word not in word_lists.FUNCTION_WORDS]
