"""Negation, and words that stand opposite each other."""

from index.guards import lexicon
from index.guards.texts import bases, words
from index.opposites import OPPOSITES, antonyms

_ELSE_ALIKE = ({"to", "from"}, {"all", "some"}, {"both", "either"}, {"must", "may"})


def negation_differs(question: str, cached: str) -> bool:
    """`does it work` against `does it not work`."""
    return bool(lexicon.NEGATION & set(words(question))) != bool(lexicon.NEGATION & set(words(cached)))


def opposites(question: str, cached: str) -> bool:
    """`enable` against `disable`, `regular` against `irregular`: a word that the other text lacks stands opposite one of its."""
    ours, theirs = set(words(question)), set(words(cached))
    only_ours, only_theirs = ours - theirs, theirs - ours
    return any(_opposite(one, other) for one in only_ours for other in only_theirs) or _turned(question, cached)


def _turned(question: str, cached: str) -> bool:
    """`move it to another bank` against `move it from another bank`, where nothing else differs: elsewhere that says little."""
    ours, theirs = words(question), words(cached)
    changed = [{one, other} for one, other in zip(ours, theirs, strict=False) if one != other]
    return len(ours) == len(theirs) and len(changed) == 1 and changed[0] in _ELSE_ALIKE


def _opposite(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if bases(other) & {word for base in bases(one) for word in (*OPPOSITES.get(base, ()), *antonyms().get(base, ()))}:
        return True
    if len(short) >= 4 and long.removesuffix(short) in lexicon.NEGATIVE_PREFIXES:
        return True
    if one.endswith(("ful", "less")) and other.endswith(("ful", "less")):
        return one.removesuffix("ful").removesuffix("less") == other.removesuffix("ful").removesuffix("less")
    return any(
        word.startswith(high) and against == low + word.removeprefix(high)
        for high, low in lexicon.PREFIX_PAIRS
        for word, against in ((one, other), (other, one))
    )
