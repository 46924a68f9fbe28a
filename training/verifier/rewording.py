import random
import re
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent


def _read_groups() -> dict[str, tuple[str, ...]]:
    lines = (line.split(": ", 1) for line in (_FOLDER / "word_groups.txt").read_text().splitlines())
    return {name: tuple(members.split("|")) for name, members in lines}


def _read_synonyms() -> dict[str, str]:
    table: dict[str, str] = {}
    for pair in (_FOLDER / "synonyms.txt").read_text().split():
        one, other = (word.replace("_", " ") for word in pair.split("/"))
        table[one] = other
        table.setdefault(other, one)
    return table


GROUPS: Mapping[str, tuple[str, ...]] = _read_groups()
"""Groups of words by name, such as `city`. Exchanging two words of a group changes the answer."""

SYNONYMS: Mapping[str, str] = _read_synonyms()
"""A synonym of each word. Exchanging them does not change the answer."""


_HOW = re.compile(
    r"^how (?:do i|can i|to|do you|can you|can we|do we|should i|would i) (?!not\b|avoid\b|never\b)(.+)$", re.I
)
_HOW_WAYS: tuple[str, ...] = (
    "How do I {}",
    "How can I {}",
    "How to {}",
    "What's the way to {}",
    "What is a good way to {}",
    "What are the steps to {}",
    "Please tell me how to {}",
    "Can you tell me how to {}",
    "Could you explain how to {}",
    "I need to {}. How do I do that",
    "I'd like to know how I can {}",
    "Show me how to {}",
    "what do I have to do to {}",
)
_WHAT = re.compile(r"^what(?: is|'s) (?!it\b|there\b|your\b|that\b)((?:\w+[ -]?){1,6})\?*$", re.I)
_WHAT_WAYS: tuple[str, ...] = (
    "What's {}",
    "What is {}",
    "Tell me what {} is",
    "Can you tell me what {} is",
    "Do you know what {} is",
    "{}, what is it",
)
_PLAIN_WAYS = (
    "{}",
    "{} Thanks!",
    "Hi, {}",
    "Hello! {}",
    "Quick question: {}",
    "Please answer this: {}",
    "I was wondering, {}",
    "Question: {}",
    "Can you help me with this? {}",
)
_SHORTER = (
    ("what is", "what's"),
    ("do not", "don't"),
    ("does not", "doesn't"),
    ("cannot", "can't"),
    ("is not", "isn't"),
    ("should not", "shouldn't"),
    ("I am", "I'm"),
    ("where is", "where's"),
    ("who is", "who's"),
)


def reword(text: str, rng: random.Random) -> str:
    text = _insert_synonym(_shorten(text, rng), rng)
    how, what = _HOW.match(text), _WHAT.match(text)
    if how and rng.random() < 0.8:
        core, ways = how.group(1), _HOW_WAYS
    elif what and rng.random() < 0.8:
        core, ways = what.group(1), _WHAT_WAYS
    else:
        return _change_punctuation(rng.choice(_PLAIN_WAYS).format(text), rng)
    core = core.rstrip("?!. ")
    return _change_punctuation(rng.choice(ways).format(core) + "?", rng)


def _shorten(text: str, rng: random.Random) -> str:
    for long, short in _SHORTER:
        if rng.random() < 0.5:
            text = re.sub(rf"\b{long}\b", short, text, flags=re.I)
    return text


def _insert_synonym(text: str, rng: random.Random) -> str:
    found = [match for match in re.finditer(r"\b[a-z]+\b", text) if match.group() in SYNONYMS]
    if not found or rng.random() < 0.4:
        return text
    at = rng.choice(found)
    return text[: at.start()] + SYNONYMS[at.group()] + text[at.end() :]


def _change_punctuation(text: str, rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.2:
        return text.rstrip("?!. ")
    return text.lower() if roll < 0.3 else text
