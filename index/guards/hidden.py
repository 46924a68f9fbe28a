"""Characters that a reader does not see, or that change how other characters look."""

import re
import unicodedata

_INVISIBLE = frozenset(("Cf", "Cc", "Co", "Cn", "Cs"))
_LAYOUT = frozenset("\t\n\r")
_VARIATION = re.compile("[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_STACKED_MARKS = 3


def hides_text(text: str) -> bool:
    """Whether a text holds invisible characters, variation selectors or stacked combining marks."""
    if text.isascii() and text.isprintable():
        return False
    run = 0
    for character in unicodedata.normalize("NFC", text):
        category = unicodedata.category(character)
        run = run + 1 if category == "Mn" else 0
        if run >= _STACKED_MARKS or (category in _INVISIBLE and character not in _LAYOUT):
            return True
    return _VARIATION.search(text) is not None


def hidden_characters(question: str, cached: str) -> bool:
    """Whether either text hides something."""
    return hides_text(question) or hides_text(cached)
