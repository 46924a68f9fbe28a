"""Finds questions that are equal apart from spelling mistakes and the form of asking."""

import re
from collections.abc import Sequence

from kvproxy.index.models.verifier.multilingual import is_english_word
from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.guards.words import WORD, cached_by_text, words

_MIN_LENGTH, _LONG = 5, 8


def correct_spelling(question: str, other: str) -> str:
    """Return a question in which misspelt words are replaced by words of the other question.

    A word is misspelt if it is in lower case, not a common English word, and one edit (two edits for 8 or more letters) away
    from a common word that only the other question has.
    """
    ours, theirs = set(words(question)), set(words(other))
    known = [word for word in theirs - ours if len(word) >= _MIN_LENGTH and is_english_word(word)]

    def correct(match: re.Match[str]) -> str:
        word = match.group()
        if len(word) < _MIN_LENGTH or not word.islower() or word in theirs or is_english_word(word):
            return word
        near = [candidate for candidate in known if _is_near(word, candidate)]
        return near[0] if len(near) == 1 else word

    return WORD.sub(correct, question) if known else question


def _is_near(word: str, known: str) -> bool:
    limit = 2 if min(len(word), len(known)) >= _LONG else 1
    return word[0] == known[0] and abs(len(word) - len(known)) <= limit and _edits(word, known) <= limit


def _edits(word: str, other: str) -> int:
    """Return the optimal string alignment distance, in which an exchange of neighbours is one edit."""
    before: Sequence[int] = ()
    row: Sequence[int] = range(len(other) + 1)
    for place, letter in enumerate(word, 1):
        current = [place]
        for column, target in enumerate(other, 1):
            cost = min(row[column] + 1, current[-1] + 1, row[column - 1] + (letter != target))
            if place > 1 < column and letter == other[column - 2] and word[place - 2] == target:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, row = row, current
    return row[-1]


_FORMS = (
    (re.compile(r"\b(what|who|where|when|how|why|that|it|there)'s\b"), r"\1 is"),
    (
        re.compile(
            r"^(?:(?:can|could|would|will) you (?:please )?(?:tell|explain|show|help) me|do you know|i(?: would|'d) like to know"
            r"|i (?:want|need) to know|(?:please )?tell me|let me know)[ ,:]+(?=what|who|where|when|how|why|if|whether)"
        ),
        "",
    ),
    (
        re.compile(
            r"\b(how|where)((?: \w+){0,2}?) (?:can|could|should|might|would|do)"
            r" (?=i |we |you |one )"
        ),
        r"\1\2 do ",
    ),
    (re.compile(r"\bhow to\b"), "how do i"),
    (re.compile(r"\bis it possible (?:for me )?to\b"), "can i"),
    (re.compile(r"^(?:do|does|if|whether)\b"), ""),
    (re.compile(r"\b(?:please|exactly|actually|just)\b"), ""),
    (re.compile(r"\b(do|can) (?:we|one)\b"), r"\1 i"),
)
_NOISE = re.compile(r"[\W_]+")


@cached_by_text
def normal_wording(question: str) -> str:
    """Return a question in a normal form: `how do i pay` for `Can you tell me how I could pay?`. Only for comparisons."""
    plain = without_fillers(question).lower().replace("’", "'").strip()
    for form, replacement in _FORMS:
        plain = form.sub(replacement, plain).strip()
    return _NOISE.sub(" ", plain).strip()
