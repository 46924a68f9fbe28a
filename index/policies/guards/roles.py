"""Who does what to whom, where both texts have the same words."""

import re
from collections import Counter

from kvproxy.index.policies.guards import lexicon
from kvproxy.index.policies.guards.words import of_text, words

_ASKING = frozenset("who whom what which".split())
_SUPPORT = frozenset("do does did".split())
_BE = frozenset("is are was were be been being".split())
_AUXILIARY = _BE | frozenset("am can could will would shall should may might must have has had".split())
_PASSIVE = re.compile(r"\b(?:is|are|was|were|be|been|being|gets?|got|getting)\b.+\bby\b[^?.!]*\w")


def roles_differ(question: str, cached: str) -> bool:
    """`who beat Brazil` against `who did Brazil beat`, `was Tom hit by Ann` against `did Tom hit Ann`.

    The words change places where the one who is asked for changes, and keep them where the voice does.
    """
    ours, theirs = _aligned(_content(question), _content(cached))
    if Counter(ours) != Counter(theirs) or len(ours) < 2:
        return False
    asked = {_asked(question), _asked(cached)}
    return asked == {"subject", "object"} if ours != theirs else _voice_differs(question.lower(), cached.lower())


def _aligned(ours: list[str], theirs: list[str]) -> tuple[list[str], list[str]]:
    """Both without the one word that either has for itself: the verb is in another form, `choose` beside `chose`."""
    alone, also_alone = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    if alone.total() != 1 or also_alone.total() != 1:
        return ours, theirs
    return ["" if word in alone else word for word in ours], ["" if word in also_alone else word for word in theirs]


def _voice_differs(question: str, cached: str) -> bool:
    active, passive = sorted((question, cached), key=lambda text: _PASSIVE.search(text) is not None)
    return bool(_PASSIVE.search(passive)) and not (_BE | {"by"}) & set(words(active))


@of_text
def _asked(text: str) -> str | None:
    """Whether the question is for the one who does something or the one to whom it is done; None where it is for neither.

    `who paid`: a verb follows, the doer is asked for. `who did they pay`, `who was paid by them`: the other one.
    """
    said = words(text)
    place = next((place for place, word in enumerate(said) if word in _ASKING), None)
    if place is None or place + 1 >= len(said):
        return None
    after = said[place + 1 : place + (3 if said[place] in ("what", "which") else 2)]
    if _SUPPORT & set(after):
        return "object"
    if after[0] in _BE:
        return "object" if said[-1] != "by" and "by" in said[place + 3 :] else None
    # `what compensation am I owed`: what follows is a noun.
    return None if after[0] in lexicon.FUNCTION_WORDS or _AUXILIARY & set(after[1:]) else "subject"


@of_text
def _content(text: str) -> list[str]:
    return [word for word in words(text) if word not in lexicon.FUNCTION_WORDS]
