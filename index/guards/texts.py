"""How guards take a text apart."""

import re

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*(?:[kK]\b)?")


def words(text: str) -> list[str]:
    """The words in lower case, with straight apostrophes."""
    return [word.lower().replace("’", "'") for word in WORD.findall(text)]
