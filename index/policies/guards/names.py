from collections import Counter

from kvproxy.index.policies.guards import word_lists
from kvproxy.index.policies.guards.tokenization import WORD, cached_by_text, words
from kvproxy.index.policies.guards.word_roots import roots

_CONTRACTED = frozenset("it that what who there here how where when he she let everything".split())


def names_differ(question: str, cached_question: str) -> bool:
    """Whether names are replaced by the same number of other names: `weather in Paris` and `weather in Rome`."""
    ours = {name for name in _names(question) if not _mentions(cached_question, name)}
    theirs = {name for name in _names(cached_question) if not _mentions(question, name)}
    return 0 < len(ours) == len(theirs) or _is_same_sentence_renamed(question, cached_question)


def _is_same_sentence_renamed(question: str, cached_question: str) -> bool:
    ours, theirs = (WORD.findall(text.replace("’", "'")) for text in (question, cached_question))
    changed = [pair for pair in zip(ours, theirs, strict=False) if _canonical_unit(pair[0]) != _canonical_unit(pair[1])]
    if len(ours) != len(theirs) or not changed or len(changed) == len(ours):
        return False
    if Counter(one for one, _ in changed) == Counter(other for _, other in changed):
        return False  # `French and German` and `German and French`: the guard `order` decides
    return all(word[0].isupper() and word.lower() not in word_lists.FUNCTION_WORDS for pair in changed for word in pair)


def _mentions(text: str, name: str) -> bool:
    return any(
        not roots(word).isdisjoint(roots(name)) or (len(name) > 4 and word.startswith(name[:4]))
        for word in _plain_words(text)
    )


def _canonical_unit(word: str) -> str:
    return word_lists.UNITS.get(word.lower(), word.lower())


@cached_by_text
def _plain_words(text: str) -> set[str]:
    return {word.removesuffix("'s") for word in words(text)}


@cached_by_text
def _names(text: str) -> set[str]:
    names: set[str] = set()
    for match in WORD.finditer(text):
        word = match.group()
        begins = not text[: match.start()].strip() or text[: match.start()].rstrip()[-1] in ".?!:"
        if word[0].isupper() and word != "I" and not (begins and not word.isupper()):
            names.add(word.lower().replace("’", "'").removesuffix("'s"))
    return names - word_lists.FUNCTION_WORDS


def possession_differs(question: str, cached_question: str) -> bool:
    """Whether the owners differ: `my brother's friend` and `my friend's brother`."""
    if "of" in (*words(question), *words(cached_question)):
        return False
    (ours, our_owners), (theirs, their_owners) = _owners(question), _owners(cached_question)
    return ours == theirs and our_owners != their_owners


@cached_by_text
def _owners(text: str) -> tuple[frozenset[str], Counter[str]]:
    owners = Counter[str]()
    content = set()
    for word in words(text):
        owner = word.removesuffix("'s")
        if owner != word and owner not in _CONTRACTED:
            owners[owner] += 1
        if owner not in word_lists.FUNCTION_WORDS:
            content.add(owner)
    return frozenset(content), owners
