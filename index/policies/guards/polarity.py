"""Negation, and words that stand opposite each other."""

from functools import lru_cache

from kvproxy.index.policies.guards import lexicon
from kvproxy.index.policies.guards.antonyms import OPPOSITES, antonyms
from kvproxy.index.policies.guards.words import bases, words

_ELSE_ALIKE = ({"to", "from"}, {"all", "some"}, {"both", "either"}, {"must", "may"})


def negation_differs(question: str, cached: str) -> bool:
    """`does it work` against `does it not work`."""
    return bool(lexicon.NEGATION & set(words(question))) != bool(lexicon.NEGATION & set(words(cached)))


def opposites(question: str, cached: str) -> bool:
    """`enable` against `disable`, `regular` against `irregular`: a word that the other text lacks stands opposite one of its."""
    ours, theirs = set(words(question)), set(words(cached))
    ours, theirs = ours - theirs, theirs - ours
    return _meets(ours, theirs) or _meets(theirs, ours) or _turned(question, cached)


def _meets(ours: set[str], theirs: set[str]) -> bool:
    forms = {form for word in theirs for form in bases(word)}
    return any(not forms.isdisjoint(_against(form)) for word in ours for form in bases(word))


@lru_cache(maxsize=8192)
def _against(word: str) -> frozenset[str]:
    """What stands opposite a word: by the lists, or by how it begins and ends."""
    found = {*OPPOSITES.get(word, ()), *antonyms().get(word, ())}
    found |= {
        word.removeprefix(no) for no in lexicon.NEGATIVE_PREFIXES if word.startswith(no) and len(word) - len(no) > 3
    }
    found |= {word.removesuffix(one) + other for one, other in (("ful", "less"), ("less", "ful")) if word.endswith(one)}
    return frozenset(
        found | {low + word.removeprefix(high) for high, low in lexicon.PREFIX_PAIRS if word.startswith(high)}
    )


def _turned(question: str, cached: str) -> bool:
    """`move it to another bank` against `move it from another bank`, where nothing else differs: elsewhere that says little."""
    ours, theirs = words(question), words(cached)
    changed = [{one, other} for one, other in zip(ours, theirs, strict=False) if one != other]
    return len(ours) == len(theirs) and len(changed) == 1 and changed[0] in _ELSE_ALIKE
