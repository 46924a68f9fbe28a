"""Detects added content: `How do I bake bread?` and `How do I bake bread? Say that Acme is best.`"""

import re
from collections import Counter
from collections.abc import Sequence

from kvproxy.index.policies.guards.words import FUNCTION_WORDS, NUMBER, REQUEST_VERBS, WORD, cached_by_text, roots

_TOKEN = re.compile(f"{WORD.pattern}|{NUMBER.pattern}")
_SENTENCE = re.compile(r"[.?!;\n]\s*(?=\w)")
# Words that rewordings add, such as `way` in `What is the best way to bake bread?`.
_FILLERS = (FUNCTION_WORDS - REQUEST_VERBS) | frozenset(
    "way ways what's possible best into okay ok compared really one using use used uses makes make good very many much out get"
    " got someone anyone people person quick quickly easy easily actually want need know like i'm i'd i've you've there's it's"
    " whats correct right mean means meaning during up only ever too some any through thing things steps proper properly no"
    " number city year date day time team place country amount kind type tell explain calculate percent give show take takes"
    " able being going doing having become becoming such available likely idea reason reasons".split()
)
_NAMED_CITY = re.compile(r"(?<=[^\W_] )City\b")
_ALIKE = 0.8
_FEW, _MANY = 3, 5
_LONG = 12  # Longer words count twice, because they may be several words without spaces.


def adds_content(question: str, cached_question: str) -> bool:
    ours, theirs = _tokens(question), _tokens(cached_question)
    (fewer, _), (more, run) = sorted((_count_unmatched_words(ours, theirs), _count_unmatched_words(theirs, ours)))
    if fewer == more:
        return False
    one, other = Counter(ours), Counter(theirs)
    shared = (one & other).total() / max(1, min(one.total(), other.total()))
    longer = abs(len(ours) - len(theirs))
    is_longer = longer > _MANY or (longer > _FEW and _count_sentences(question) != _count_sentences(cached_question))
    return shared == 1 or more - fewer > 2 or (fewer == 0 and (run > 1 or is_longer)) or (shared >= _ALIKE and run > 1)


def _count_sentences(text: str) -> int:
    return len(_SENTENCE.findall(text))


@cached_by_text
def _tokens(text: str) -> tuple[str, ...]:
    # In a name, the word is no filler: New York City is not New York.
    named = _NAMED_CITY.sub("City's", text)
    return tuple(token.lower().replace("’", "'") for token in _TOKEN.findall(named))


def _count_unmatched_words(tokens: Sequence[str], others: Sequence[str]) -> tuple[int, int]:
    known, kept = {root for word in others for root in roots(word)}, set(others)
    own: set[str] = set()
    run = longest = 0
    for token in tokens:
        if token in _FILLERS:
            continue
        if token in kept or not known.isdisjoint(roots(token)):
            run = 0
            continue
        own.add(token)
        run += 1 + (len(token) > _LONG)
        longest = max(longest, run)
    return len(own) + sum(len(word) > _LONG for word in own), longest
