"""A guard against characters that readers cannot see."""

import re
import unicodedata

_INVISIBLE = frozenset(("Cf", "Cc", "Co", "Cn", "Cs"))
_LAYOUT = frozenset("\t\n\r")
_VARIATION = re.compile("[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_STACKED_MARKS = 3
_WORD = re.compile(r"\w+")
_ALIKE = frozenset(("LATIN", "CYRILLIC", "GREEK"))
# Greek letters that resemble no Latin letter.
_SYMBOLS = frozenset("αβγδεζηθλμξπσςφχψωΓΔΘΛΞΠΣΦΨΩ")


def has_hidden_text(text: str) -> bool:
    """Whether a text has characters that readers cannot see, stacked diacritics, or a word in two alphabets."""
    if text.isascii() and text.isprintable():
        return False
    run = 0
    for character in unicodedata.normalize("NFC", text):
        category = unicodedata.category(character)
        run = run + 1 if category == "Mn" else 0
        if run >= _STACKED_MARKS or (category in _INVISIBLE and character not in _LAYOUT):
            return True
    return _VARIATION.search(text) is not None or any(map(_mixes_alphabets, _WORD.findall(text)))


def _mixes_alphabets(word: str) -> bool:
    if word.isascii():
        return False
    letters = (letter for letter in word if letter.isalpha() and letter not in _SYMBOLS)
    return len({unicodedata.name(letter, "").partition(" ")[0] for letter in letters} & _ALIKE) > 1
