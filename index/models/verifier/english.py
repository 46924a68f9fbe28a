"""Whether a text is English, by the words that it is made of."""

from collections.abc import Container

from kvproxy.index.policies.guards.lexicon import FUNCTION_WORDS
from kvproxy.index.policies.guards.words import words

_LEAST = 0.8


def is_english(text: str, vocabulary: Container[str]) -> bool:
    """Whether enough of the words are known whole, or are such as hold English sentences together.

    Args:
        vocabulary: of a tokenizer that was made from English text: it cuts up most words of other languages.
    """
    said = words(text)
    if not said:
        return True
    known = sum(all(part in vocabulary for part in word.split("'") if part) for word in said)
    holding = sum(word in FUNCTION_WORDS for word in said)
    return (known + holding) / len(said) >= _LEAST
