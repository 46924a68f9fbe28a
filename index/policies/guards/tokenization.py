import re
from functools import lru_cache

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*(?:[kK]\b)?")
cached_by_text = lru_cache(maxsize=512)
"""Decorator that caches a function of one text. Callers must not modify the result."""


@cached_by_text
def words(text: str) -> tuple[str, ...]:
    return tuple(word.lower().replace("’", "'") for word in WORD.findall(text))


@lru_cache(maxsize=8192)
def base_forms(word: str) -> frozenset[str]:
    """Return possible base forms of a word: `accept` for `accepted`, `stop` for `stopped`, `heavy` for `heavier`."""
    found = {word, *(word.removesuffix(ending) for ending in ("s", "es") if len(word) > len(ending) + 2)}
    for ending in ("ed", "ing", "er", "est"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 2:
            found |= {stem, f"{stem}e", stem[:-1] if stem[-1] == stem[-2] else stem}
            found |= {f"{stem[:-1]}y"} if stem[-1] == "i" else set()
    return frozenset(found)
