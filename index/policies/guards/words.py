"""How guards take a text apart."""

import re
from functools import lru_cache

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*(?:[kK]\b)?")


# Most guards take the same two texts apart, and a text is compared with several others.
of_text = lru_cache(maxsize=512)
"""Remembers what a function makes of a text; callers must not change it."""


@of_text
def words(text: str) -> tuple[str, ...]:
    """The words in lower case, with straight apostrophes."""
    return tuple(word.lower().replace("’", "'") for word in WORD.findall(text))


@lru_cache(maxsize=8192)
def bases(word: str) -> frozenset[str]:
    """What a word may be a form of, itself included: `accept` for `accepted`, `stop` for `stopped`, `heavy` for `heavier`."""
    found = {word, *(word.removesuffix(ending) for ending in ("s", "es") if len(word) > len(ending) + 2)}
    for ending in ("ed", "ing", "er", "est"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 2:
            found |= {stem, f"{stem}e", stem[:-1] if stem[-1] == stem[-2] else stem}
            found |= {f"{stem[:-1]}y"} if stem[-1] == "i" else set()
    return frozenset(found)
