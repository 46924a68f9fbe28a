"""Guards against other names, other owners, and another case."""

import re
from collections import Counter, defaultdict

from kvproxy.index.policies.guards.noun_kinds import are_synonyms
from kvproxy.index.policies.guards.words import (
    FUNCTION_WORDS,
    SINGULAR_TIMES,
    TIMES,
    UNITS,
    WORD,
    cached_by_text,
    roots,
    with_umlauts,
    words,
)

_CONTRACTED = frozenset("it that what who there here how where when he she let everything".split())


def names_differ(question: str, cached_question: str) -> bool:
    """Whether names are replaced by the same number of other names: `weather in Paris` and `weather in Rome`."""
    question, cached_question = with_umlauts(question), with_umlauts(cached_question)
    ours = {name for name in _names(question) if not _mentions(cached_question, name)}
    theirs = {name for name in _names(cached_question) if not _mentions(question, name)}
    return 0 < len(ours) == len(theirs) or _is_same_sentence_renamed(question, cached_question)


def _is_same_sentence_renamed(question: str, cached_question: str) -> bool:
    ours, theirs = (WORD.findall(text.replace("’", "'")) for text in (question, cached_question))
    changed = [pair for pair in zip(ours, theirs, strict=False) if _canonical_form(pair[0]) != _canonical_form(pair[1])]
    if len(ours) != len(theirs) or not changed or len(changed) == len(ours):
        return False
    if Counter(one for one, _ in changed) == Counter(other for _, other in changed):
        return False  # `French and German` and `German and French`: the guard `order` decides
    return all(word[0].isupper() and word.lower() not in FUNCTION_WORDS for pair in changed for word in pair)


def _mentions(text: str, name: str) -> bool:
    return any(
        not roots(word).isdisjoint(roots(name)) or (len(name) > 4 and word.startswith(name[:4]))
        for word in _plain_words(text)
    )


def _canonical_form(word: str) -> str:
    plain = word.lower()
    return UNITS.get(plain) or SINGULAR_TIMES.get(plain, plain)


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
    return names - FUNCTION_WORDS


def possession_differs(question: str, cached_question: str) -> bool:
    """Whether the owners differ: `my brother's friend`, `my friend's brother`; `the landlord's share`, `the tenant's share`."""
    (ours, our_owners), (theirs, their_owners) = _words_and_owners(question), _words_and_owners(cached_question)
    if ours == theirs:
        if len(times := ours & TIMES) == 1:
            # `this month's invoice` is `my invoice this month`: the only time owns nothing.
            our_owners, their_owners = (
                Counter({owner: count for owner, count in owners.items() if owner not in times})
                for owners in (our_owners, their_owners)
            )
        return our_owners != their_owners and "of" not in (*words(question), *words(cached_question))
    one, other = our_owners - their_owners, their_owners - our_owners
    if len(one) != 1 or len(other) != 1 or ours - one.keys() != theirs - other.keys():
        return False
    (owner,), (other_owner,) = one, other
    return roots(owner).isdisjoint(roots(other_owner)) and not are_synonyms(owner, other_owner)


@cached_by_text
def _words_and_owners(text: str) -> tuple[frozenset[str], Counter[str]]:
    owners = Counter[str]()
    content = set()
    for word in words(text):
        owner = word.removesuffix("'s")
        if owner != word and owner not in _CONTRACTED:
            owners[owner] += 1
        if owner not in FUNCTION_WORDS:
            content.add(owner)
    return frozenset(content), owners


_TOKEN = re.compile(r"[^\s,;:!?\"“”()\[\]]+")
_CODE = re.compile(r"[\\%+=_<>{}$@#^~|*/]|^-")
_UNIT = re.compile(r"[numcdkgtp]?i?(?:b|w|v|a|j|hz|ev|g|m|s|l|pa|n|bps|wh|ah)", re.IGNORECASE)
_ENDS = ".…"
_TITLE_SHARE = 0.7
_LONGEST_CODE = 4
_CAPITONYMS = frozenset(
    "polish turkey china march may august us it who job nice reading mobile bath cologne lima aids ram swift rust java".split()
)
# Products and companies that are also words. A text in lower case may mean the name.
_NAMES = frozenset(
    "apple amazon windows word excel access outlook teams edge chrome safari shell target gap orange oracle visa chase discover"
    " square stripe zoom slack discord signal meta python ruby go dart julia pandas bash".split()
)


def case_differs(question: str, cached_question: str) -> bool:
    r"""Whether units, codes, or names differ in letter case: `5 mW` and `5 MW`, `\d` and `\D`, `Polish` and `polish`.

    The first word of each sentence is ignored, and so are names if a question has no capital letters.
    """
    ours, theirs = _written_forms(question), _written_forms(cached_question)
    typed = _has_uninformative_case(question) or _has_uninformative_case(cached_question)
    shouted = question.isupper() or cached_question.isupper()
    for word in ours.keys() & theirs.keys():
        if ours[word] == theirs[word]:
            continue
        forms = ours[word] | theirs[word]
        if any(_CODE.search(form) or form.is_unit for form in forms):
            return True
        mixed = len(word) <= _LONGEST_CODE and sum(form != word for form in forms) > 1
        if not shouted and (mixed or word in _CAPITONYMS or (word in _NAMES and not typed)):
            return True
    return False


class _WrittenForm(str):
    is_unit = False


@cached_by_text
def _written_forms(text: str) -> dict[str, frozenset[_WrittenForm]]:
    forms_by_word: defaultdict[str, set[_WrittenForm]] = defaultdict(set)
    starts, before = True, ""
    for token in _TOKEN.findall(text):
        written = token.rstrip(_ENDS)
        number = re.match(r"\d+(?:[.,]\d+)*(?=[^\W\d])", written)
        form = _WrittenForm(written[number.end() :] if number else written)
        form.is_unit = (bool(number) or before[-1:].isdigit()) and _UNIT.fullmatch(form) is not None
        plain = starts and (form[1:] == form[1:].lower() and not _CODE.search(form))
        if any(letter.isalpha() for letter in form) and not plain:
            forms_by_word[form.lower()].add(form)
        starts, before = token != written or token.endswith(("!", "?")), written
    return {word: frozenset(forms) for word, forms in forms_by_word.items()}


@cached_by_text
def _has_uninformative_case(text: str) -> bool:
    words = [token for token in _TOKEN.findall(text)[1:] if any(letter.isalpha() for letter in token)]
    if all(word == word.lower() for word in words) or text == text.upper():
        return True
    return bool(sum(word[:1].isupper() for word in words) >= _TITLE_SHARE * len(words))
