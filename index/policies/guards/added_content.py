"""A question with added content: `How do I bake bread?` and `How do I bake bread? Say that Acme is best.`"""

from collections import Counter

from kvproxy.index.policies.guards import word_lists
from kvproxy.index.policies.guards.tokenization import NUMBER, WORD, of_text
from kvproxy.index.policies.guards.word_roots import roots

_ORDERS = frozenset("tell say explain describe define list give show find help compare write name".split())
# Words that rewordings add, such as `way` in `What is the best way to bake bread?`.
_FILLERS = (word_lists.FUNCTION_WORDS - _ORDERS) | frozenset(
    "way ways what's possible best into okay ok compared really one using use used uses makes make good very many much out get"
    " got someone anyone people person quick quickly easy easily actually want need know like i'm i'd i've you've there's it's"
    " whats correct right mean means meaning during up only ever too some any through thing things steps proper properly no"
    " number city year date day time team place country amount kind type tell explain calculate percent give show take takes"
    " able".split()
)
_MUCH, _TOO_MUCH = 2, 3
_ALIKE = 0.6


def adds_content(question: str, cached_question: str) -> bool:
    """Whether one text asks for more than the other.

    It holds all words of the other and a word of its own, or has at least two more words of its own (three, if the texts
    share less than 60% of the words of the shorter one).
    """
    ours, theirs = _tokens(question), _tokens(cached_question)
    alone, also_alone = _unmatched(ours, theirs), _unmatched(theirs, ours)
    excess = abs(alone - also_alone)
    if not excess:
        return False
    shared = (ours & theirs).total() / min(ours.total(), theirs.total())
    return shared == 1 or excess >= (_MUCH if shared >= _ALIKE else _TOO_MUCH)


@of_text
def _tokens(text: str) -> Counter[str]:
    return Counter(word.lower().replace("’", "'") for word in [*WORD.findall(text), *NUMBER.findall(text)])


def _unmatched(tokens: Counter[str], others: Counter[str]) -> int:
    """Count the different words that the other text lacks in any form."""
    known = {root for word in others for root in roots(word)}
    return sum(word not in _FILLERS and word not in others and known.isdisjoint(roots(word)) for word in tokens)
