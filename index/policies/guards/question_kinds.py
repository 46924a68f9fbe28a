import re
from collections import Counter
from itertools import pairwise

from kvproxy.index.policies.guards import word_lists
from kvproxy.index.policies.guards.tokenization import cached_by_text, words

_QUESTION = re.compile(
    r"\b(how come|how (?:many|much|long|often|frequently|old|tall|far|big|fast|large|heavy|high|deep)|\w+)\b"
)
_QUESTION_KINDS = {
    "who": "who", "whom": "who", "whose": "who", "when": "when", "where": "where", "why": "why", "how come": "why",
    "what": "what", "which": "which", "how": "how", "how frequently": "how often",
}  # fmt: skip


def question_words_differ(question: str, cached_question: str) -> bool:
    """Whether the question words differ in meaning: `when was it invented` and `where was it invented`.

    The word `which` matches every question word, and `what` matches every one except `who`.
    """
    ours, theirs = _question_kinds(question), _question_kinds(cached_question)
    if not ours or not theirs or ours & theirs or "which" in ours | theirs:
        return False
    return "what" not in ours | theirs or bool({"who"} & (ours | theirs))


@cached_by_text
def _question_kinds(text: str) -> set[str]:
    found = list(_QUESTION.findall(text.lower()))
    kinds = [_QUESTION_KINDS.get(word, word if word.startswith("how ") else None) for word in found]
    first = next((place for place, kind in enumerate(kinds) if kind is not None), None)
    if first is None:
        return set()
    second = kinds[first + 2] if found[first + 1 : first + 2] == ["and"] and len(kinds) > first + 2 else kinds[first]
    return {kind for kind in (kinds[first], second) if kind is not None}


def time_differs(question: str, cached_question: str) -> bool:
    """Whether the questions name different times (`open on monday`, `open on sunday`), or only one names a day."""
    ours, theirs = _times(question), _times(cached_question)
    return ours != theirs and bool((ours and theirs) or (ours | theirs) & word_lists.DAYS)


@cached_by_text
def _times(text: str) -> set[str]:
    tokens = words(text)
    shifts = {
        f"{shift} {word}"
        for shift, word in pairwise(tokens)
        if word in word_lists.TIMES and shift in word_lists.TIME_SHIFTS
    }
    return shifts | (word_lists.TIMES & set(tokens))


def language_differs(question: str, cached_question: str) -> bool:
    """Whether the questions, or the answers that they ask for, are in different languages."""
    ours, theirs = set(words(question)), set(words(cached_question))
    if word_lists.LANGUAGES & ours != word_lists.LANGUAGES & theirs:
        return True
    one, other = _question_language(ours), _question_language(theirs)
    return one != other and None not in (one, other)


def _question_language(tokens: set[str]) -> str | None:
    counts = Counter({name: len(frequent & tokens) for name, frequent in word_lists.FREQUENT.items()})
    (best, most), (_, second) = counts.most_common(2)
    return best if most >= 2 and most > second else None
