"""Finds the words of a turn that may be facts: content words, names, numbers, and times."""

from functools import lru_cache

from kvproxy.index.policies.guards.question_and_format import named_times
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, WORD, cached_by_text, roots, words
from kvproxy.index.policies.learned.answer_facts import answer_facts

_SMALL_TALK = frozenset(
    "hi hello hey hiya thanks thank cheers great ok okay yes no yep yeah sure lol haha nice cool perfect brilliant sorry please"
    " good morning afternoon evening hope day well done".split()
)
# These mostly emphasize something, and then name no time.
_EMPHASIS = frozenset("now current currently latest".split())


@lru_cache(maxsize=4096)
def content_words(text: str) -> frozenset[str]:
    content = (word.removesuffix("'s") for word in words(text) if word.partition("'")[0] not in FUNCTION_WORDS)
    return frozenset(content) - FUNCTION_WORDS - _SMALL_TALK


@lru_cache(maxsize=1024)
def roots_of(text: str) -> frozenset[str]:
    return frozenset(root for word in words(text) for root in roots(word.removesuffix("'s")))


def unknown_words(candidates: frozenset[str], known: frozenset[str]) -> set[str]:
    """Return the words none of whose roots is among the `known` ones."""
    return {word for word in candidates if known.isdisjoint(roots(word))}


def have_equal_content(turn: str, other: str) -> bool:
    pairs = ((turn, other), (other, turn))
    return not any(unknown_words(content_words(one), roots_of(another)) for one, another in pairs)


@cached_by_text
def names_of(text: str) -> frozenset[str]:
    """Return words with a capital letter that do not begin a sentence, in lower case."""
    names = set[str]()
    for match in WORD.finditer(text):
        before = text[: match.start()].rstrip()
        if match.group()[0].isupper() and before and before[-1] not in ".?!:" and not match.group().startswith("I'"):
            names.add(match.group().lower().removesuffix("'s"))
    return frozenset(names - {"i"})


@lru_cache(maxsize=256)
def quantities(text: str) -> frozenset[str]:
    """Return the numbers and times of a text."""
    return (answer_facts(text).numbers | named_times(text)) - _EMPHASIS
