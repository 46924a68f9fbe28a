import re
from collections import Counter

from kvproxy.index.policies.guards import word_lists
from kvproxy.index.policies.guards.tokenization import NUMBER, WORD, cached_by_text, words

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


@cached_by_text
def _numbers(text: str) -> Counter[str]:
    found = Counter(map(_normalize_number, NUMBER.findall(text)))
    found += Counter(word_lists.ROMAN[word] for word in WORD.findall(text) if word in word_lists.ROMAN)
    return found + Counter(word_lists.NUMBER_WORDS[word] for word in words(text) if word in word_lists.NUMBER_WORDS)


def _normalize_number(number: str) -> str:
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
    return set(_PERCENT.findall(text.lower()))


@cached_by_text
def _units(text: str) -> set[str]:
    found = (after or before for after, before in _MEASURE.findall(text.lower()))
    return {word_lists.UNITS[unit] for unit in found if unit in word_lists.UNITS}
