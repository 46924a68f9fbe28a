"""BERT's WordPiece tokenizer (arXiv 1810.04805) for the packaged vocabulary.

The package `tokenizers` gives the same ids, but requires huggingface-hub and eight more packages. Marks such as `[SEP]` in a text
are ordinary characters here.
"""

import json
import unicodedata
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from kvproxy.index.errors import EmbedderError

_CLS, _SEP, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
_MAX_WORD = 100
"""Longer words are unknown."""
_MAX_CHARACTERS = 100
"""Per token of the limit. The rest of a text is not read."""
_CACHED_WORDS = 20_000
_SYMBOLS = frozenset("$+<=>^`|~")
"""ASCII characters that BERT counts as punctuation, and Unicode does not."""
_IDEOGRAPHS = (
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF)),
    *((0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F)),
)
"""Each of these characters is a word."""


class Encoding(NamedTuple):
    """Token ids, and for each of them whether it belongs to the second text (1) or not (0)."""

    ids: list[int]
    type_ids: list[int]


class WordPiece:
    """Encodes texts and pairs of texts.

    Args:
        vocabulary: ids of tokens. Tokens that continue a word begin with `##`.
        max_tokens: of an encoding. The longer text of a pair is truncated first.
    """

    def __init__(self, vocabulary: Mapping[str, int], max_tokens: int) -> None:
        self.vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._characters = _Characters()
        self._pieces = lru_cache(_CACHED_WORDS)(self._pieces_of)

    def encode(self, text: str, other: str | None = None) -> Encoding:
        """Return the encoding of a text, or of a pair."""
        start, end = self.vocabulary[_CLS], self.vocabulary[_SEP]
        first = self._tokens(text)
        if other is None:
            ids = [start, *first[: self._max_tokens - 2], end]
            return Encoding(ids, [0] * len(ids))
        second = self._tokens(other)
        room = self._max_tokens - 3
        shorter = min(len(first), len(second), room // 2)
        longer = room - shorter
        first, second = (
            (first[:longer], second[:shorter]) if len(first) > len(second) else (first[:shorter], second[:longer])
        )
        return Encoding([start, *first, end, *second, end], [0] * (len(first) + 2) + [1] * (len(second) + 1))

    def _tokens(self, text: str) -> list[int]:
        text = text[: _MAX_CHARACTERS * self._max_tokens]
        return [token for word in text.translate(self._characters).split() for token in self._pieces(word)]

    def _pieces_of(self, word: str) -> tuple[int, ...]:
        """The longest token at each place; the unknown token if a place has none."""
        pieces: list[int] = []
        start = 0
        while start < len(word) <= _MAX_WORD:
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self.vocabulary), None)
            if end is None:
                break
            pieces.append(self.vocabulary[mark + word[start:end]])
            start = end
        return tuple(pieces) if start == len(word) else (self.vocabulary[UNKNOWN],)


@cache
def load_tokenizer(folder: Path, max_tokens: int) -> WordPiece:
    """Return the tokenizer of the packaged model.

    Raises:
        EmbedderError: its vocabulary is missing or damaged.
    """
    path = folder / "tokenizer.json"
    try:
        return WordPiece(json.loads(path.read_bytes())["model"]["vocab"], max_tokens)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EmbedderError(f"cannot read {path} ({error}): install kvproxy again") from None


class _Characters(dict[int, str]):
    """What `str.translate` writes for each character: lower case without accents, and spaces around punctuation."""

    def __missing__(self, code: int) -> str:
        written = _normalized(chr(code))
        # Larger code points are rare. They must not fill the memory.
        if code < 0x10000:
            self[code] = written
        return written


def _normalized(character: str) -> str:
    if character in "\t\n\r":
        return " "
    if character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Co"):
        return ""
    written = "".join(map(_letter, unicodedata.normalize("NFD", character)))
    return f" {written} " if any(first <= ord(character) <= last for first, last in _IDEOGRAPHS) else written


def _letter(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Mn":
        return ""
    return f" {character} " if category.startswith("P") or character in _SYMBOLS else character.lower()
