"""Cheap vetoes on a neighbour: small pure functions that notice when two close questions need different answers.

Embeddings put `enable 2FA` beside `disable 2FA` and `version 2` beside `version 3`. A guard looks at the words instead.
It can only refuse; that it stays silent says nothing about the answer.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from index import lexicon
from index.opposites import OPPOSITES

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*(?:[kK]\b)?")
_TOKEN = re.compile(f"{_WORD.pattern}|{_NUMBER.pattern}")
_MEASURE = re.compile(r"\d\s*-?\s*(%|[°$€£₹]?[^\W\d_]+)|([$€£₹]|\b(?:rs|inr|usd|eur|gbp)\b)\.?\s*\d")
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|`([^`]+)`|(?<!\w)'([^']+)'(?!\w)")
_PIECE = re.compile(r"[^\W_]+|[^\w\s.,;:?!'’\"“”`]")
_CODE = re.compile(
    r"`[^`]+`|\b\w+(?:_\w+)+\b|\b[a-z]+[A-Z]\w*\b|\b\w+\(\)|(?<!\w)--?\w[\w-]*|(?<!\w)(?:/[\w.-]+)+|\b[^\W\d]\w+(?:\.[a-z_]\w+)+\b"
    r"|<\w+>|(?<!\w)[=!<>+*&|^%~:?-]{2,}(?!\w)|\b[A-Za-z](?:\+\+|#)"
)
# Of mathematics and all others, such as pictures; those of currencies are units.
_SIGNS = ("Sm", "So")
_QUESTION = re.compile(r"\b(how come|how (?:many|much|long|often|old|tall|far|big|fast|large|heavy|high|deep)|\w+)\b")
_QUESTION_KINDS = {
    "who": "who", "whom": "who", "whose": "who", "when": "when", "where": "where", "why": "why", "how come": "why",
    "what": "what", "which": "which", "how": "how",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guard:
    """A named veto: `vetoes(question, cached)` is True where one answer must not serve both."""

    name: str
    vetoes: Callable[[str, str], bool]


def numbers_differ(question: str, cached: str) -> bool:
    """`port 80` against `port 8080`, `two` against `three`: each has a number that the other lacks."""
    ours, theirs = _numbers(question), _numbers(cached)
    ours, theirs = ours - theirs, theirs - ours
    return bool((ours or _one(question, cached)) and (theirs or _one(cached, question)) and (ours or theirs))


def _one(text: str, other: str) -> bool:
    """Whether only this text says `one`, which is a number only where the other text has another."""
    return "one" in _words(text) and "one" not in _words(other)


def _numbers(text: str) -> Counter[str]:
    found = Counter(map(_plain, _NUMBER.findall(text)))
    found += Counter(lexicon.ROMAN[word] for word in _WORD.findall(text) if word in lexicon.ROMAN)
    return found + Counter(lexicon.NUMBER_WORDS[word] for word in _words(text) if word in lexicon.NUMBER_WORDS)


def _plain(number: str) -> str:
    """`30k` and `30,000` as `30000`."""
    digits = re.sub(r",(?=\d{3}\b)", "", number.lower())
    return digits[:-1] + "000" if digits.endswith("k") else digits


def negation_differs(question: str, cached: str) -> bool:
    """`does it work` against `does it not work`."""
    return bool(lexicon.NEGATION & set(_words(question))) != bool(lexicon.NEGATION & set(_words(cached)))


def opposites(question: str, cached: str) -> bool:
    """`enable` against `disable`, `regular` against `irregular`: a word that the other text lacks stands opposite one of its."""
    ours, theirs = set(_words(question)), set(_words(cached))
    only_ours, only_theirs = ours - theirs, theirs - ours
    return any(_opposite(one, other) for one in only_ours for other in only_theirs)


def _opposite(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if other in OPPOSITES.get(one, ()):
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


def quotes_differ(question: str, cached: str) -> bool:
    """`what does "stop" mean` against `what does "seed" mean`: each quotes words that the other text does not have in a row."""
    return _quotes_more(question, cached) and _quotes_more(cached, question)


def _quotes_more(text: str, other: str) -> bool:
    said = _spaced(other)
    return any(_spaced(next(filter(None, groups))) not in said for groups in _QUOTED.findall(text))


def _spaced(text: str) -> str:
    """The tokens in lower case, a space around each, so that a phrase is found as a part."""
    return f" {' '.join(_PIECE.findall(text.lower()))} "


def code_differs(question: str, cached: str) -> bool:
    """`max_tokens` against `max_model_len`, `--port` against `--host`, `/v1/models` against `/metrics`."""
    ours, theirs = _code(question), _code(cached)
    # A brand such as iPhone is written in any case; an identifier is not.
    return any(code.lower() not in _words(cached) for code in ours - theirs) or any(
        code.lower() not in _words(question) for code in theirs - ours
    )


def _code(text: str) -> set[str]:
    return {code.strip("`") for code in _CODE.findall(text)}


def names_differ(question: str, cached: str) -> bool:
    """`weather in Paris` against `weather in Rome`: as many names on either side that the other text does not mention."""
    ours = {name for name in _names(question) if not _mentions(cached, name)}
    theirs = {name for name in _names(cached) if not _mentions(question, name)}
    return 0 < len(ours) == len(theirs) or _renamed(question, cached)


def _renamed(question: str, cached: str) -> bool:
    """`Python or something else` against `Java or something else`: one sentence, with other names in the same places."""
    ours, theirs = (_WORD.findall(text.replace("’", "'")) for text in (question, cached))
    changed = [pair for pair in zip(ours, theirs, strict=False) if _form(pair[0]) != _form(pair[1])]
    if len(ours) != len(theirs) or not changed or len(changed) == len(ours):
        return False
    if Counter(one for one, _ in changed) == Counter(other for _, other in changed):
        return False  # `French and German` beside `German and French`; `order` tells where places matter
    return all(word[0].isupper() and word.lower() not in lexicon.FUNCTION_WORDS for pair in changed for word in pair)


def _mentions(text: str, name: str) -> bool:
    """Whether a word of the text is the name, or a form of it: `India`, `Indian`, `India's`; `Rs`, `INR`, `rupees`."""
    return any(
        _form(word) == _form(name) or (len(name) > 4 and word.startswith(name[:4])) for word in _plain_words(text)
    )


def _form(word: str) -> str:
    """In lower case, and the one form of a unit: `inr` for `Rs`."""
    return lexicon.UNITS.get(word.lower(), word.lower())


def _plain_words(text: str) -> set[str]:
    return {word.removesuffix("'s") for word in _words(text)}


def _names(text: str) -> set[str]:
    names: set[str] = set()
    for match in _WORD.finditer(text):
        word = match.group()
        begins = not text[: match.start()].strip() or text[: match.start()].rstrip()[-1] in ".?!:"
        if word[0].isupper() and word != "I" and not (begins and not word.isupper()):
            names.add(word.lower().replace("’", "'").removesuffix("'s"))
    return names - lexicon.FUNCTION_WORDS


def order_differs(question: str, cached: str) -> bool:
    """`convert miles to kilometres` against `convert kilometres to miles`: the same sentence with words that changed places.

    Words around `and` and `or` may, and so may a sentence as a whole, as in `which is the best X` and `which X is best`.
    """
    ours, theirs = _content(question), _content(cached)
    if ours == theirs or Counter(ours) != Counter(theirs) or _frame(question) != _frame(cached):
        return False
    one, other = _words(question), _words(cached)
    moved = [place for place, (ours_, theirs_) in enumerate(zip(one, other, strict=False)) if ours_ != theirs_]
    around = len(moved) == 2 and moved[1] - moved[0] == 2 and one[moved[0] + 1] in ("and", "or", "vs", "versus")
    return not around and "between" not in one


def _frame(text: str) -> list[str]:
    """The function words in their places among the others, articles aside."""
    tokens = [token for token in _WORD.findall(text) if token not in ("a", "an", "the", "An", "The")]
    return ["" if token == "A" or token.lower() not in lexicon.FUNCTION_WORDS else token.lower() for token in tokens]


def _content(text: str) -> list[str]:
    tokens = _TOKEN.findall(text)
    # A capital A inside a sentence is a name, as in `from A to B`, and no article.
    named = {place for place, token in enumerate(tokens) if place and token == "A"}
    words = [token.lower().replace("’", "'") for token in tokens]
    return [word for place, word in enumerate(words) if place in named or word not in lexicon.FUNCTION_WORDS]


def time_differs(question: str, cached: str) -> bool:
    """`open on monday` against `open on sunday`, `last week` against `this week`, `today` against a text without a time."""
    ours, theirs = _times(question), _times(cached)
    return ours != theirs and bool((ours and theirs) or (ours | theirs) & lexicon.DAYS)


def _times(text: str) -> set[str]:
    words = _words(text)
    shifts = {
        f"{shift} {word}" for shift, word in pairwise(words) if word in lexicon.TIMES and shift in lexicon.TIME_SHIFTS
    }
    return shifts | (lexicon.TIMES & set(words))


def units_differ(question: str, cached: str) -> bool:
    """`10 miles` against `10 kilometres`: both have units right after a number, and not the same ones."""
    ours, theirs = _units(question), _units(cached)
    return bool(ours and theirs) and ours != theirs


def _units(text: str) -> set[str]:
    found = (after or before for after, before in _MEASURE.findall(text.lower()))
    return {lexicon.UNITS[unit] for unit in found if unit in lexicon.UNITS}


def question_differs(question: str, cached: str) -> bool:
    """`when was it invented` against `where was it invented`; `what` may ask for the same as any but `who`, `which` as any."""
    ours, theirs = _kinds(question), _kinds(cached)
    if not ours or not theirs or ours & theirs or "which" in ours | theirs:
        return False
    return "what" not in ours | theirs or bool({"who"} & (ours | theirs))


def _kinds(text: str) -> set[str]:
    """The kinds of the first question words: one, or two of them in `when and where`."""
    found = list(_QUESTION.findall(text.lower()))
    kinds = [word if word.startswith("how ") and word != "how come" else _QUESTION_KINDS.get(word) for word in found]
    first = next((place for place, kind in enumerate(kinds) if kind is not None), None)
    if first is None:
        return set()
    second = kinds[first + 2] if found[first + 1 : first + 2] == ["and"] and len(kinds) > first + 2 else kinds[first]
    return {kind for kind in (kinds[first], second) if kind is not None}


def language_differs(question: str, cached: str) -> bool:
    """`answer in French` against `answer in German`, or one text written in German and the other in English."""
    ours, theirs = set(_words(question)), set(_words(cached))
    if lexicon.LANGUAGES & ours != lexicon.LANGUAGES & theirs:
        return True
    one, other = _written_in(ours), _written_in(theirs)
    return one != other and None not in (one, other)


def _written_in(words: set[str]) -> str | None:
    """The language with the most frequent words of its own, None where there is no clear one."""
    counts = Counter({name: len(frequent & words) for name, frequent in lexicon.FREQUENT.items()})
    (best, most), (_, second) = counts.most_common(2)
    return best if most >= 2 and most > second else None


def signs_differ(question: str, cached: str) -> bool:
    """`👍` against `👎`, `=` against `≠`, `schön` against `schon`: signs and accents, which many models do not read."""
    ours, theirs = _signs(question), _signs(cached)
    if ours - theirs and theirs - ours:
        return True
    one, other = (set(_words(unicodedata.normalize("NFC", text))) for text in (question, cached))
    return bool({_bare(word) for word in one - other} & {_bare(word) for word in other - one})


def _signs(text: str) -> set[str]:
    return {
        sign for sign in unicodedata.normalize("NFC", text) if sign in "&*|^~" or unicodedata.category(sign) in _SIGNS
    }


def _bare(word: str) -> str:
    """A word without its accents."""
    return "".join(letter for letter in unicodedata.normalize("NFD", word) if not unicodedata.combining(letter))


def _words(text: str) -> list[str]:
    return [word.lower().replace("’", "'") for word in _WORD.findall(text)]


GUARDS = (
    Guard("numbers", numbers_differ),
    Guard("units", units_differ),
    Guard("negation", negation_differs),
    Guard("opposites", opposites),
    Guard("quotes", quotes_differ),
    Guard("code", code_differs),
    Guard("names", names_differ),
    Guard("order", order_differs),
    Guard("time", time_differs),
    Guard("question", question_differs),
    Guard("language", language_differs),
    Guard("signs", signs_differ),
)
