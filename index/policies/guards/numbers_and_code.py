"""Compares quotations, code, and signs, which must be equal character by character."""

import re
import unicodedata
from collections import Counter

from kvproxy.index.policies.guards.words import NUMBER, NUMBER_WORDS, ROMAN, UNITS, WORD, cached_by_text, words

_MEASURE = re.compile(r"\d\s*-?\s*(%|[°$€£₹]?[^\W\d_]+)|([$€£₹]|\b(?:rs|inr|usd|eur|gbp)\b)\.?\s*\d")
_PERCENT = re.compile(r"(\d[\d.,]*)\s*(?:%|per ?cent\b)")


def numbers_differ(question: str, cached_question: str) -> bool:
    """Whether each question has a number that the other lacks: `port 80` and `port 8080`, `two` and `three`."""
    ours, theirs = _numbers(question), _numbers(cached_question)
    ours, theirs = ours - theirs, theirs - ours
    return bool(
        (ours or _has_number_one(question, cached_question))
        and (theirs or _has_number_one(cached_question, question))
        and (ours or theirs)
    )


def _has_number_one(text: str, other: str) -> bool:
    return "one" in words(text) and "one" not in words(other)


_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(sorted(NUMBER_WORDS, key=len, reverse=True))})\b", re.IGNORECASE)
_ONES = {word: number for number, word in enumerate("one two three four five six seven eight nine".split(), 1)}
_TENS = re.compile(
    rf"\b(twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)[ -]({'|'.join(_ONES)})\b", re.IGNORECASE
)
_ORDINALS = {"1st": "first", "2nd": "second", "3rd": "third", "4th": "fourth", "5th": "fifth"}
_ORDINAL = re.compile(rf"\b(?:{'|'.join(_ORDINALS)})\b", re.IGNORECASE)
_ONE_PERIOD = re.compile(r"\bone(?=[ -](?:hour|day|week|month|year)\b)", re.IGNORECASE)
_PERIOD = re.compile(r"(?<![.,])\b(\d{1,18})([ -])(hour|week|month)s?\b", re.IGNORECASE)
_PERIODS = {"hour": ("days", 1, 24), "week": ("days", 7, 1), "month": ("years", 1, 12)}


@cached_by_text
def with_plain_numbers(text: str) -> str:
    """Return a text with digits for number words, days for weeks and for 24 hours, and years for 12 months."""
    text = _TENS.sub(lambda match: str(int(NUMBER_WORDS[match[1].lower()]) + _ONES[match[2].lower()]), text)
    text = _ORDINAL.sub(lambda ordinal: _ORDINALS[ordinal[0].lower()], text)
    text = _ONE_PERIOD.sub("1", text)
    return _PERIOD.sub(_plain_period, _NUMBER_WORD.sub(lambda word: NUMBER_WORDS[word[0].lower()], text))


def _plain_period(period: re.Match[str]) -> str:
    unit, factor, divisor = _PERIODS[period[3].lower()]
    number, rest = divmod(factor * int(period[1]), divisor)
    return period[0] if rest else f"{number}{period[2]}{unit}"


@cached_by_text
def _numbers(text: str) -> Counter[str]:
    text = with_plain_numbers(text)
    numbers = Counter(map(normalize_number, NUMBER.findall(text)))
    numbers += Counter(ROMAN[word] for word in WORD.findall(text) if word in ROMAN)
    return numbers + Counter(NUMBER_WORDS[word] for word in words(text) if word in NUMBER_WORDS)


def normalize_number(number: str) -> str:
    digits = re.sub(r",(?=\d{3}\b)", "", number.lower())
    return digits[:-1] + "000" if digits.endswith("k") else digits


def units_differ(question: str, cached_question: str) -> bool:
    """Whether the units of numbers differ: `10 miles` and `10 kilometres`, `15%` and `15`."""
    ours, theirs = _units(question), _units(cached_question)
    if _percents(question) != _percents(cached_question) and _numbers(question) == _numbers(cached_question):
        return True
    return bool(ours and theirs) and ours != theirs


@cached_by_text
def _percents(text: str) -> set[str]:
    return set(_PERCENT.findall(_NUMBER_WORD.sub(lambda word: NUMBER_WORDS[word[0].lower()], text.lower())))


@cached_by_text
def _units(text: str) -> set[str]:
    units = (after or before for after, before in _MEASURE.findall(with_plain_numbers(text).lower()))
    return {UNITS[unit] for unit in units if unit in UNITS}


_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|`([^`]+)`|(?<!\w)'([^']+)'(?!\w)")
_PIECE = re.compile(r"[^\W_]+|[^\w\s.,;:?!'’\"“”`]")
_CODE = re.compile(
    r"`[^`]+`|\b\w+(?:_\w+)+\b|\b[a-z]+[A-Z]\w*\b|\b\w+\(\)|(?<!\w)--?\w[\w-]*|(?<!\w)(?:/[\w.-]+)+|\b[^\W\d]\w+(?:\.[a-z_]\w+)+\b"
    r"|<\w+>|(?<!\w)(?![?!]+(?:\s|$))[=!<>+*&|^%~:?-]{2,}(?!\w)|\b[A-Za-z](?:\+\+|#)"
)
_OPERATOR = re.compile(r"[=!<>+*&|^%~]+")
_SIGNS = ("Sm", "So")
_MINUS = re.compile(r"(?<=\s)-(?=\s)|-(?=\d)")


def quotes_differ(question: str, cached_question: str) -> bool:
    """Whether each question quotes words that the other lacks: `what does "stop" mean` and `what does "seed" mean`."""
    return _has_other_quotation(question, cached_question) and _has_other_quotation(cached_question, question)


def _has_other_quotation(text: str, other: str) -> bool:
    spaced = _separate_by_spaces(other)
    return any(_separate_by_spaces(next(filter(None, groups))) not in spaced for groups in _QUOTED.findall(text))


@cached_by_text
def _separate_by_spaces(text: str) -> str:
    return f" {' '.join(_PIECE.findall(text.lower()))} "


def code_differs(question: str, cached_question: str) -> bool:
    """Whether identifiers, options, or paths differ: `max_tokens` and `max_model_len`, `--port` and `--host`."""
    ours, theirs = code_tokens(question), code_tokens(cached_question)
    # A brand such as iPhone appears in any case; an identifier does not.
    return any(code.lower() not in words(cached_question) for code in ours - theirs) or any(
        code.lower() not in words(question) for code in theirs - ours
    )


@cached_by_text
def code_tokens(text: str) -> set[str]:
    return {code.strip("`") for code in _CODE.findall(text)}


def signs_differ(question: str, cached_question: str) -> bool:
    """Whether emojis, operators, or accents differ: `👍` and `👎`, `x + 6` and `x - 6`, `a*b` and `a**b`, `schön` and `schon`."""
    ours, theirs = _signs(question), _signs(cached_question)
    if ours - theirs and theirs - ours:
        return True
    one_runs, other_runs = set(_OPERATOR.findall(question)), set(_OPERATOR.findall(cached_question))
    if {run[0] for run in one_runs - other_runs} & {run[0] for run in other_runs - one_runs}:
        return True
    one, other = (set(words(unicodedata.normalize("NFC", text))) for text in (question, cached_question))
    return bool({_strip_accents(word) for word in one - other} & {_strip_accents(word) for word in other - one})


@cached_by_text
def _signs(text: str) -> Counter[str]:
    signs = unicodedata.normalize("NFC", _MINUS.sub("\N{MINUS SIGN}", text))
    return Counter(sign for sign in signs if sign in "&*|^~" or unicodedata.category(sign) in _SIGNS)


def _strip_accents(word: str) -> str:
    if word.isascii():
        return word
    return "".join(letter for letter in unicodedata.normalize("NFD", word) if not unicodedata.combining(letter))
