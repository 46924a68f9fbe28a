"""Finds things, people, and quantities that have other roles in the statements of another conversation."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise, permutations

from kvproxy.index.policies.guards.tenses import ADVERBS
from kvproxy.index.policies.guards.word_order import has_exchanged_words
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, NEGATION, NUMBER, WORD, roots, words
from kvproxy.index.search.turn_words import content_words, have_equal_content, quantities

_WORD_OR_NUMBER = re.compile(rf"{WORD.pattern}|{NUMBER.pattern}")
_CLAUSE_END = re.compile(r"[,.;?!]\s+|\n+|\s+(?:and|but|then)\s+", re.IGNORECASE)
_USER = frozenset({"i", "we"})
_NO_OTHER_SUBJECTS = FUNCTION_WORDS - {"they"}
_MIN_WORDS_OF_ORDER = 3


def are_reordered(turn: str, other: str) -> bool:
    """Whether at least three content words or numbers have another order, so that two of them may have exchanged their roles."""
    ours, theirs = _content_in_order(turn), _content_in_order(other)
    if max(len(ours), len(theirs)) < _MIN_WORDS_OF_ORDER:
        return False
    return len(ours) != len(theirs) or any(map(frozenset.isdisjoint, ours, theirs))


def are_exchanged(sentence: str, other: str) -> bool:
    """Whether two sentences with equal content words have another order, apart from neighbours: `a free switch`, `switch free`.

    Beside a negation, neighbours matter, too: `in the shop but not online`.
    """
    ours, theirs = _content_in_order(sentence), _content_in_order(other)
    moved = [place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0].isdisjoint(pair[1])]
    if not moved or len(ours) < _MIN_WORDS_OF_ORDER:
        return False
    return moved[-1] - moved[0] > 1 or not NEGATION.isdisjoint(words(sentence))


def exchange_order(statements: str, others: str) -> bool:
    """Whether at least three content words or numbers of both texts have another order."""
    ours, theirs = _content_in_order(statements), _content_in_order(others)
    known, also_known = (
        frozenset(root for each in words_in_order for root in each) for words_in_order in (theirs, ours)
    )
    ours = [each for each in ours if not known.isdisjoint(each)]
    theirs = [each for each in theirs if not also_known.isdisjoint(each)]
    if max(len(ours), len(theirs)) < _MIN_WORDS_OF_ORDER:
        return False
    return len(ours) != len(theirs) or any(map(frozenset.isdisjoint, ours, theirs))


def replace_repeated_words(statement: str, other: str) -> bool:
    """Whether one statement repeats a word where the other has another one.

    Example: `boards are exported in the board menu` and `boards are exported in the File menu`.
    """
    ours, theirs = _content_in_order(statement), _content_in_order(other)
    return bool(_unmatched(ours, theirs) and _unmatched(theirs, ours))


def _unmatched(ours: list[frozenset[str]], theirs: list[frozenset[str]]) -> list[frozenset[str]]:
    """Return the words without a counterpart, of which each word has one."""
    left, unmatched = list(theirs), list[frozenset[str]]()
    for each in ours:
        place = next((place for place, other in enumerate(left) if not each.isdisjoint(other)), None)
        if place is None:
            unmatched.append(each)
        else:
            del left[place]
    return unmatched


def _content_in_order(text: str) -> list[frozenset[str]]:
    """Return the roots of each content word, and each number, in their order."""
    tokens = (token.lower().replace("’", "'").removesuffix("'s") for token in _WORD_OR_NUMBER.findall(text))
    content = content_words(text)
    return [roots(token) for token in tokens if token in content or token[0].isdigit()]


def exchange_roles(text: str, other: str) -> bool:
    """Whether two texts of several sentences exchange things, numbers, or times.

    Examples: `beans indoors, peas outdoors` and `peas indoors. And beans outdoors.`; `it is from May, I paid it in June` and
    `I paid it in May. It is from June.`
    """
    if have_equal_content(text, other) and has_exchanged_words(text, other):
        return True
    ours, theirs = _words_of_quantities(text), _words_of_quantities(other)
    return any(
        not (ours[one] - ours[another]).isdisjoint(theirs[another] - theirs[one])
        for one, another in permutations(ours.keys() & theirs.keys(), 2)
    )


@lru_cache(maxsize=256)
def _words_of_quantities(text: str) -> Mapping[str, frozenset[str]]:
    """Return the roots of the content words in the clauses of each number and time."""
    found: dict[str, frozenset[str]] = {}
    for clause in _CLAUSE_END.split(text):
        named = quantities(clause)
        content = frozenset(root for word in content_words(clause) - named for root in roots(word))
        found |= {quantity: found.get(quantity, frozenset()) | content for quantity in named}
    return found


def subjects_differ(statement: str, other: str) -> bool:
    """Whether the user is the subject of a verb in one statement only: `I pay for it`, `my employer pays for it`."""
    return _acts_instead(statement, other) or _acts_instead(other, statement)


def _acts_instead(statement: str, other: str) -> bool:
    """Whether something else than the user is the subject of a verb in the other statement."""
    by_user = {root for subject, verb in _neighbours(statement) if subject in _USER for root in roots(verb)}
    return any(
        subject not in _NO_OTHER_SUBJECTS and verb not in FUNCTION_WORDS and not by_user.isdisjoint(roots(verb))
        for subject, verb in _neighbours(other)
        if "'" not in subject
    )


def _neighbours(statement: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of successive words of each clause, without adverbs, such as a subject and its verb."""
    for clause in _CLAUSE_END.split(statement):
        yield from pairwise(word for word in words(clause) if word not in ADVERBS)
