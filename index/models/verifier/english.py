"""Detection of English by known words."""

from collections.abc import Container

from kvproxy.index.policies.guards.lexicon import FUNCTION_WORDS
from kvproxy.index.policies.guards.words import words

_LEAST = 0.8


def is_english(text: str, vocabulary: Container[str]) -> bool:
    """Return whether enough words are in the vocabulary or are function words.

    Args:
        vocabulary: of a tokenizer trained on English. It splits most words of other languages.
    """
    tokens = words(text)
    if not tokens:
        return True
    known = sum(all(part in vocabulary for part in word.split("'") if part) for word in tokens)
    function_words = sum(word in FUNCTION_WORDS for word in tokens)
    return (known + function_words) / len(tokens) >= _LEAST
