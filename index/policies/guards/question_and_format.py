"""Guards against other question words, times, languages, and formats."""

import re
from collections import Counter
from itertools import pairwise

from kvproxy.index.policies.guards.words import (
    DAYS,
    FREQUENT,
    LANGUAGES,
    SINGULAR_TIMES,
    TIME_SHIFTS,
    TIMES,
    cached_by_text,
    words,
)

_QUESTION = re.compile(
    r"\b(how come|how many times(?= (?:a|per|each|every|do|does|should|can|must|may)\b)"
    r"|how much time|how (?:many|much|long|often|frequently|regularly|old|tall|far|big|large|fast|quickly|rapidly|soon|heavy|high"
    r"|deep)|\w+)\b"
)
_DURATION = re.compile(
    r"\bhow many (?:\w+ )?(?:second|minute|hour|day|night|week|month|year)s (?!(?:a|an|per|each|every|of)\b)[^.;?!]*?"
    r"\b(?:take|takes|took|taken|last|lasts|lasted|wait)\b(?![^.;?!]*\b(?:a|an|per|each|every) (?:day|week|month|year)\b)"
)
_QUESTION_KINDS = {
    "who": "who", "whom": "who", "whose": "who", "when": "when", "where": "where", "why": "why", "how come": "why",
    "what": "what", "which": "which", "how": "how", "how frequently": "how often", "how regularly": "how often",
    "how many times": "how often", "how quickly": "how fast", "how rapidly": "how fast", "how large": "how big",
    "how much time": "how long",
}  # fmt: skip


def question_words_differ(question: str, cached_question: str) -> bool:
    """Whether the question words differ in meaning: `when was it invented` and `where was it invented`.

    The word `which` matches every question word, and `what` matches every one except `who`. A price is not an amount: `how much
    does it cost to withdraw` and `how much can I withdraw`. A choice (`which is better, A or B`) has no answer
    *yes*, as `is A better than B` has.
    """
    if {_compares(question), _compares(cached_question)} == {"choice", "claim"}:
        return True
    if {_asks_for(question), _asks_for(cached_question)} == {"price", "amount"}:
        return True
    ours, theirs = _question_kinds(question), _question_kinds(cached_question)
    if not ours or not theirs or ours & theirs or "which" in ours | theirs:
        return False
    return "what" not in ours | theirs or bool({"who"} & (ours | theirs))


_PRICE = re.compile(r"\bhow much (?:does|do|did|will|would) (?:it|this|that) cost\b", re.IGNORECASE)
_AMOUNT = re.compile(
    r"\bhow much (?:\w+ )?(?:can|could|may|must|should) (?:i|we|you|one) (?!\w* ?(?:pay|cost|expect|charge))",
    re.IGNORECASE,
)


def _asks_for(text: str) -> str | None:
    if _PRICE.search(text):
        return "price"
    return "amount" if _AMOUNT.search(text) else None


_CHOICE = re.compile(r"\b(?:which|what|who)\b")
_OR = re.compile(r"\b(?:or|vs|versus)\b")
_CLAIM = re.compile(
    r"^\W*(?:is|are|was|were|do|does|did|can|will|would|has|have)(?:n't)? .*\b(?:better|worse|more|less|\w+er) .*\bthan\b"
)


@cached_by_text
def _compares(text: str) -> str | None:
    """Return `choice` for `which is better, A or B`, and `claim` for `is A better than B`."""
    plain = text.lower()
    if _OR.search(plain):
        return "choice" if _CHOICE.search(plain) else None
    return "claim" if _CLAIM.search(plain) else None


@cached_by_text
def _question_kinds(text: str) -> set[str]:
    question_words = list(_QUESTION.findall(text.lower()))
    kinds = [_QUESTION_KINDS.get(word, word if word.startswith("how ") else None) for word in question_words]
    first = next((place for place, kind in enumerate(kinds) if kind is not None), None)
    if first is None:
        return set()
    second = (
        kinds[first + 2]
        if question_words[first + 1 : first + 2] == ["and"] and len(kinds) > first + 2
        else kinds[first]
    )
    return {kind for kind in (kinds[first], second, _other_kind(text, question_words[first])) if kind is not None}


def _other_kind(text: str, question_word: str) -> str | None:
    if question_word == "how quickly":
        return "how soon"  # It asks for a speed, or for the time until something happens.
    return "how long" if question_word == "how many" and _DURATION.search(text.lower()) else None


def time_differs(question: str, cached_question: str) -> bool:
    """Whether the questions name different times (`open on monday`, `open on sunday`), or only one names a day."""
    ours, theirs = named_times(question), named_times(cached_question)
    return ours != theirs and bool((ours and theirs) or (ours | theirs) & DAYS)


_WORKING_DAYS = re.compile(
    r"\bmondays? (?:to|through|till|until|thru) fridays?\b|\bweekdays\b|\b(?:on )?working days\b", re.IGNORECASE
)
_WEEKENDS = re.compile(r"\bsaturdays? (?:and|or) sundays?\b|\bweekends\b", re.IGNORECASE)

_MAY = re.compile(
    r"(?:\b(?:in|from|since|until|till|by|of|this|last|next|early|late|mid)|\d(?:st|nd|rd|th)?) May\b|\bMay \d"
)


@cached_by_text
def named_times(text: str) -> frozenset[str]:
    named = words(_WEEKENDS.sub("weekend", _WORKING_DAYS.sub("weekday", text)))
    tokens = [SINGULAR_TIMES.get(word, word) for word in named]
    months = {"may"} if _MAY.search(text) else set[str]()
    shifts = {f"{shift} {word}" for shift, word in pairwise(tokens) if word in TIMES and shift in TIME_SHIFTS}
    return frozenset(shifts | months | (TIMES & set(tokens)))


def language_differs(question: str, cached_question: str) -> bool:
    """Whether the questions, or the answers that they ask for, are in different languages."""
    ours, theirs = set(words(question)), set(words(cached_question))
    if LANGUAGES & ours != LANGUAGES & theirs:
        return True
    one, other = _question_language(ours), _question_language(theirs)
    return one != other and None not in (one, other)


def _question_language(tokens: set[str]) -> str | None:
    counts = Counter({name: len(frequent & tokens) for name, frequent in FREQUENT.items()})
    (best, most), (_, second) = counts.most_common(2)
    return best if most >= 2 and most > second else None


_UNIT = "(word|line|sentence|paragraph|page|point)s?"
_LENGTHS = (
    re.compile(rf"\b(\d+|two|three|four|five|six|seven|eight|nine|ten)[ -]{_UNIT}\b"),
    re.compile(
        rf"\b(?:in|with|within|under|about|than|exactly|most) (an?|one|few|several|a few|a couple of)[ -]{_UNIT}\b"
    ),
)
_FORMS = {
    "brief": r"brief(?:ly)?|in short|concise(?:ly)?|in a nutshell|tl;?dr|in brief",
    "detail": r"in (?:\w+ )?details?|detailed|in[- ]depth|thorough(?:ly)?|comprehensive(?:ly)?|at length",
    "steps": r"step[- ]by[- ]step",
    "plain": r"(?:simple|plain|layman'?s?|easy|everyday) (?:terms|words|english|language)|eli5"
    r"|like i'?m (?:five|5|\w+ years? old)"
    r"|(?:to|for) (?:an? )?(?:\w+ )?(?:child(?:ren)?|kids?|five[- ]year[- ]old|beginners?|laym[ae]n|dumm(?:y|ies))",
    "expert": r"(?:to|for) (?:an? )?(?:\w+ )?(?:experts?|specialists?|professionals?|phd students?)",
    "examples": r"examples?",
    "bullets": r"bullet(?:ed|s)?(?: points?| list)?",
    "table": r"(?:as|in|into) (?:a |an )?(?:table|tabular)(?: form)?",
    **{name: rf"(?:as|in|into|to) {name}" for name in ("json", "yaml", "xml", "csv", "markdown", "html")},
}  # fmt: skip
_FORM = re.compile("|".join(rf"(?P<{name}>\b(?:{pattern})\b)" for name, pattern in _FORMS.items()))


# Elsewhere, `for my child` is not a style: `the dose for my child`.
_EXPLAINING = re.compile(
    r"\b(?:explain|describe|write|summari[sz]e|teach|tell|define|rewrite|simplif|say|terms|language|english)"
)


def answer_format_differs(question: str, cached_question: str) -> bool:
    """Whether the questions ask for different lengths, styles, or formats: `explain it step by step` and `explain it`."""
    return _requested_formats(question) != _requested_formats(cached_question)


@cached_by_text
def _requested_formats(text: str) -> set[str]:
    plain = text.lower().replace("’", "'")
    lengths = {f"{number} {unit}" for length in _LENGTHS for number, unit in length.findall(plain)}
    formats = {str(match.lastgroup) for match in _FORM.finditer(plain)}
    if _EXPLAINING.search(plain) is None:
        formats = {
            name for name in formats if name not in ("plain", "expert") or "like i'm" in plain or "eli5" in plain
        }
    return lengths | formats
