"""Cheap vetoes on a neighbour: small pure functions that notice when two close questions need different answers.

Embeddings put `enable 2FA` beside `disable 2FA` and `version 2` beside `version 3`. A guard looks at the words instead.
It can only refuse; that it stays silent says nothing about the answer.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from index.opposites import OPPOSITES

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_NUMBER_WORDS = frozenset(
    "zero two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand million"
    " first second third fourth fifth half double twice".split()
)
_NEGATION = frozenset(
    "not no never none nothing without cannot neither nor hardly except unless isn't aren't wasn't don't doesn't didn't"
    " can't won't shouldn't wouldn't couldn't haven't hasn't mustn't".split()
)
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|`([^`]+)`|(?<!\w)'([^']+)'(?!\w)")
_CODE = re.compile(r"`[^`]+`|\b\w+(?:_\w+)+\b|\b[a-z]+[A-Z]\w*\b|\b\w+\(\)|--?\w[\w-]*|(?:/[\w.-]+)+|\b\w+(?:\.\w+)+\b")
_FUNCTION_WORDS = frozenset(
    "a an the is are was were be been am do does did can could would should will shall may might must i you we they he she"
    " it its my your our their me us them this that these those there here what which who whom whose how when where why"
    " please tell say explain describe define and or but so if then than as also just exactly hi hello hey ok".split()
)
_RELATIVE_TIME = frozenset(
    "today tonight tomorrow yesterday now currently latest recent recently monday tuesday wednesday thursday friday"
    " saturday sunday january february march april june july august september october november december week month"
    " year morning evening noon".split()
)


@dataclass(frozen=True, slots=True)
class Guard:
    """A named veto: `vetoes(question, cached)` is True where one answer must not serve both."""

    name: str
    vetoes: Callable[[str, str], bool]


def numbers_differ(question: str, cached: str) -> bool:
    """`port 80` against `port 8080`, `two` against `three`."""
    return _numbers(question) != _numbers(cached)


def _numbers(text: str) -> Counter[str]:
    found = Counter(number.strip(".,:") for number in _NUMBER.findall(text))
    return found + Counter(word for word in _words(text) if word in _NUMBER_WORDS)


def negation_differs(question: str, cached: str) -> bool:
    """`does it work` against `does it not work`."""
    return bool(_NEGATION & set(_words(question))) != bool(_NEGATION & set(_words(cached)))


def opposites(question: str, cached: str) -> bool:
    """`enable` against `disable`: a word of one text stands opposite to a word of the other that it lacks itself."""
    ours, theirs = set(_words(question)), set(_words(cached))
    only_ours, only_theirs = ours - theirs, theirs - ours
    return any(OPPOSITES.get(word, frozenset()) & only_theirs for word in only_ours)


def quotes_differ(question: str, cached: str) -> bool:
    """`what does "stop" mean` against `what does "seed" mean`."""
    return _quoted(question) != _quoted(cached)


def _quoted(text: str) -> set[str]:
    return {next(filter(None, groups)).lower() for groups in _QUOTED.findall(text)}


def code_differs(question: str, cached: str) -> bool:
    """`max_tokens` against `max_model_len`, `--port` against `--host`, `/v1/models` against `/metrics`."""
    return {code.strip("`") for code in _CODE.findall(question)} != {code.strip("`") for code in _CODE.findall(cached)}


def names_differ(question: str, cached: str) -> bool:
    """`weather in Paris` against `weather in Rome`: capitalised words inside a sentence that the other text lacks."""
    ours, theirs = _names(question), _names(cached)
    return bool(ours - set(_words(cached)) and theirs - set(_words(question))) or (
        bool(ours) != bool(theirs) and bool((ours | theirs) - (set(_words(question)) & set(_words(cached))))
    )


def _names(text: str) -> set[str]:
    names: set[str] = set()
    for match in _WORD.finditer(text):
        word = match.group()
        begins = not text[: match.start()].strip() or text[: match.start()].rstrip()[-1] in ".?!:"
        if word[0].isupper() and word != "I" and not (begins and not word.isupper()):
            names.add(word.lower())
    return names - _FUNCTION_WORDS


def order_differs(question: str, cached: str) -> bool:
    """`convert miles to kilometres` against `convert kilometres to miles`: the same words in another order."""
    ours = [word for word in _words(question) if word not in _FUNCTION_WORDS]
    theirs = [word for word in _words(cached) if word not in _FUNCTION_WORDS]
    return ours != theirs and Counter(ours) == Counter(theirs)


def time_differs(question: str, cached: str) -> bool:
    """`open on monday` against `open on sunday`, and `now` against a text that names no time."""
    return (_RELATIVE_TIME & set(_words(question))) != (_RELATIVE_TIME & set(_words(cached)))


def _words(text: str) -> list[str]:
    return [word.lower().replace("’", "'") for word in _WORD.findall(text)]


GUARDS = (
    Guard("numbers", numbers_differ),
    Guard("negation", negation_differs),
    Guard("opposites", opposites),
    Guard("quotes", quotes_differ),
    Guard("code", code_differs),
    Guard("names", names_differ),
    Guard("order", order_differs),
    Guard("time", time_differs),
)
