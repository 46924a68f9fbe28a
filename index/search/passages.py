"""Separates the question of a message from the passages, data, or instructions around it.

Only the questions of two messages are compared; the other text of both must be equal. So a wrong split costs hits, but does not
compare two passages, unless a passage is written as a question.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise, takewhile

from kvproxy.index.policies.guards.words import words
from kvproxy.index.search.earlier_statements import SENTENCE_END, has_content, is_question

_MIN_OTHER_LETTERS = 40
_MAX_PLAIN_BYTES = 800
_MAX_READ = 262_144
_MAX_REGIONS = 64
_OWNERS = (
    r"(?:the|my|our|your|users?(?:['’]s)?|customers?(?:['’]s)?|clients?(?:['’]s)?|human(?:['’]s)?|current|new|actual|final|original"
    r"|latest|next|last|follow-?up|die|meine|aktuelle|ma|mi|la)"
)
_STRONG_NAMES = r"question|query|frage|anfrage|pregunta|consulta|domanda|vraag|pergunta|pytanie|問題|質問|问题"
_INSTRUCTION_NAMES = r"instructions?|task|aufgabe"
_NAMES = rf"{_STRONG_NAMES}|{_INSTRUCTION_NAMES}|q|request|user|human"
_QUESTION_LABEL = re.compile(
    rf"(?:^|(?<=\n)|(?<=[.!?;>)}}\]\"'] ))[ \t>]{{0,8}}(?P<open>\[\[ ##|#{{1,6}}|[*_]{{1,3}}|[-=]{{2,9}}|[<\[])?[ \t]{{0,3}}"
    rf"(?:{_OWNERS}[ _-]+){{0,2}}(?P<name>{_NAMES})(?:[ _](?:from|of|by|des|der|du|del) (?:\w+[ _]?){{1,2}})?(?: ?\d{{1,2}})?"
    r"[ \t]{0,3}(?P<close>[*_]{0,3}[ \t]{0,3}[:：][ \t]{0,3}[*_]{0,3}|## \]\]|[>\]]|[-=]{2,9}"
    r"|[*_#]{1,3}[ \t]{0,3}(?=\n|$)|(?=\n))",
    re.IGNORECASE,
)
_JSON_FIELD = re.compile(
    rf'"(?:\w{{1,20}}_)?(?:{_STRONG_NAMES})"\s{{0,9}}:\s{{0,9}}"(?P<value>(?:[^"\\]|\\.)*)"', re.IGNORECASE
)
# A line that ends a question: a blank one, a heading, a tag, a rule, or a label such as `Context:`.
_END = re.compile(
    r"\n[ \t]*(?=\n|#{1,6} |<|\[|\||>|```|[-*_=~]{3,}|[*_]{0,3}(?:[\w'’-]+[ \t]+){0,3}[\w'’-]+[*_]{0,3}[ \t]*[:：])"
    r"|</|<\||(?<!\s)[ \t]{1,3}(?:[A-Z][\w'’]{0,20}[ \t])?[A-Z][\w'’]{0,20}:[ \t]{0,3}(?:\n|$)|\Z"
)
_EMPTY = re.compile(
    r"<[^<>\n]{1,60}>|(?<![\w'’-])(?:[\w'’-]{1,30}[ \t]{1,3}){0,3}[\w'’-]{1,30}[ \t]{0,3}[:：](?=\s*(?:\Z|[\n<]))|[\W_]+"
)
_STRUCTURE = re.compile(
    r"(?:^|\n)[ \t]*(?:#{1,6} |</?\w[\w-]*[^<>\n]*>|\[/?\w{1,20}\]|>|```|[-*•] |\d+[.)] |[-*_=~]{3,}[ \t]*(?:\n|$)|\|"
    r"|[*_\[]{0,3}(?:[\w'’-]+[ \t]+){0,3}[\w'’-]+[\]*_]{0,3}[ \t]*[:：]|[^\n]{1,200}[:：][ \t]{0,3}\n)"
)
_OPENED_TAG, _CLOSED_TAG = re.compile(r"<(\w[\w-]{0,60})(?: [^<>\n]*)?>"), re.compile(r"</(\w[\w-]{0,60})>")
# Instructions about the text before them, whose wording matters.
_USES_WORDING = re.compile(
    r"\b(?:translat|rewrit|rephras|paraphras|reformulat|proofread|classif|categori[sz]|extract|repeat|quote|count)\w*",
    re.IGNORECASE,
)
_TAG = re.compile(r"\[/?\w{1,20}\]|<[^<>]{1,40}>")
_LINE = re.compile(r"[^\n]+")
# Quotations, lists, tables, JSON, and labelled data, such as `Review: Is it good?`.
_DATA_LINE = re.compile(r"[ \t]*(?:>|[-*•] |\||[\[{(]|\d+[.)] |(?:[\w'’-]+ ){0,2}[\w'’-]+: )")
_REQUEST = re.compile(
    r"^\W*(?:please\b[, ]*)?(?:translate|rewrite|rephrase|fix|correct|give|extract|classify|find|generate|create|make|answer"
    r"|analy[sz]e|compare|count|sort|identify|summari[sz]e|convert|explain|describe|list|tell|write|draft|review|refactor|optimi[sz]e"
    r"|improve|shorten|simplify|outline|highlight|format|check|debug|implement|reply|respond|paraphrase|proofread|parse|rank|name"
    r"|state|quote|show|evaluate|estimate|calculate|compute|solve|complete|continue|categori[sz]e|tag|label)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SplitMessage:
    """A question, and the text of its message before and after it."""

    before: str
    question: str
    after: str


def split_message(parts: Sequence[str]) -> SplitMessage | None:
    """Return the question of a message, whose text has one or more parts; None if the message is not split.

    The question is a labelled one (`Question: ..`, or a field of JSON), before labelled instructions, or the last or the first
    line if it is a question or a request. Messages up to 800 bytes without a label, heading, tag, list, or several parts are not
    split.
    """
    text = "\n\n".join(parts)
    if len(text) > _MAX_READ:
        return None
    region = (
        _field_of_json(text)
        or _labelled(text)
        or (_unlabelled(text) if len(parts) > 1 or _has_structure(text) else None)
    )
    if region is None:
        return None
    start, end = _trimmed(text, *region)
    split = SplitMessage(text[:start], text[start:end], text[end:])
    letters = islice(filter(str.isalnum, chain(split.before, split.after)), _MIN_OTHER_LETTERS)
    return split if len([*letters]) == _MIN_OTHER_LETTERS and any(map(str.isalnum, split.question)) else None


def _has_structure(text: str) -> bool:
    return len(text.encode("utf-8", "replace")) > _MAX_PLAIN_BYTES or _STRUCTURE.search(text) is not None


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    found = text[start:end]
    return start + len(found) - len(found.lstrip()), start + len(found.rstrip())


def _field_of_json(text: str) -> tuple[int, int] | None:
    fields = [*_JSON_FIELD.finditer(text)] if text.lstrip()[:1] == "{" else []
    return fields[0].span("value") if len(fields) == 1 else None


@dataclass(frozen=True, slots=True)
class _Region:
    """A labelled text, without its label."""

    label: int
    start: int
    end: int
    name: str

    @property
    def is_question(self) -> bool:
        return re.fullmatch(_STRONG_NAMES, self.name, re.IGNORECASE) is not None

    @property
    def is_instruction(self) -> bool:
        return re.fullmatch(_INSTRUCTION_NAMES, self.name, re.IGNORECASE) is not None


def _labelled(text: str) -> tuple[int, int] | None:
    regions = list[_Region]()
    for match in _QUESTION_LABEL.finditer(text):
        if not match["close"] and match["open"] is None:
            continue
        start, end = _until_end(text, match.end())
        if any(map(str.isalnum, text[start:end])):
            regions.append(_Region(match.start(), start, end, match["name"]))
        if len(regions) > _MAX_REGIONS:
            return None
    asked, end = _without_instructions(text, regions)
    if not asked:
        return None
    *_, last = asked
    if len(asked) == 1 or not _EMPTY.sub("", text[last.end : end]):
        return last.start, last.end
    strong = [region for region in asked if region.is_question]
    if len(strong) == 1:
        return strong[0].start, strong[0].end
    first = asked[0]
    is_alone = first.is_question and not _EMPTY.sub("", _QUESTION_LABEL.sub("", text[: first.start]))
    return (first.start, first.end) if is_alone else None


def _without_instructions(text: str, regions: Sequence[_Region]) -> tuple[Sequence[_Region], int]:
    """Return the regions before instructions that follow a question, and the end of their text."""
    kept, end = [*regions], len(text)
    while kept and kept[-1].is_instruction:
        end = kept.pop().label
    is_found = bool(kept) and kept[-1].is_question and not _USES_WORDING.search(text, end)
    return (kept, end) if is_found else (regions, len(text))


def _until_end(text: str, start: int) -> tuple[int, int]:
    start += len(text[start:]) - len(text[start:].lstrip())
    end = _END.search(text, start)
    assert end is not None
    return start, end.start()


def _unlabelled(text: str) -> tuple[int, int] | None:
    lines = [match.span() for match in _LINE.finditer(text)]
    last = next((line for line in reversed(lines) if _EMPTY.sub("", text[slice(*line)])), None)
    first = next((line for line in lines if any(map(str.isalnum, text[slice(*line)]))), None)
    if first is None or last is None:
        return None
    asked_first = _asking_sentences(text, *first, 1) or _asking_sentences(text, *first, -1)
    asked_last = _asking_sentences(text, *last, -1)
    if asked_last is None or (asked_first and _announces_data(text[slice(*asked_first)])):
        return asked_first
    return asked_last


def _asking_sentences(text: str, start: int, end: int, step: int) -> tuple[int, int] | None:
    """Return the region of the last (`step` -1) or the first (1) sentences of a line that are questions or requests."""
    line = text[start:end]
    if _DATA_LINE.match(line):
        return None
    cuts = [0, *(match.end() for match in SENTENCE_END.finditer(line)), len(line)]
    asking = [
        *takewhile(
            lambda pair: _asks(line[slice(*pair)]),
            (pair for pair in [*pairwise(cuts)][::step] if _has_content(line[slice(*pair)])),
        )
    ][::step]
    return None if not asking or _is_in_block(text, start) else (start + asking[0][0], start + asking[-1][1])


def _announces_data(request: str) -> bool:
    return request.rstrip().endswith((":", "："))


def _is_in_block(text: str, place: int) -> bool:
    """Whether a place is within a fenced block of code, or within a tag."""
    before, after = text[:place], text[place:]
    closed = Counter(_CLOSED_TAG.findall(before))
    opened = Counter(_OPENED_TAG.findall(before)) - closed
    return before.count("```") % 2 == 1 or not opened.keys().isdisjoint(_CLOSED_TAG.findall(after))


def _has_content(sentence: str) -> bool:
    return len(sentence) > _MAX_PLAIN_BYTES or (has_content(sentence) and _TAG.fullmatch(sentence.strip()) is None)


def _asks(sentence: str) -> bool:
    if len(sentence) > _MAX_PLAIN_BYTES:
        return False
    has_words = len(words(sentence)) > 2 or sentence.rstrip()[-1:] not in (":", "：")
    return has_words and (is_question(sentence) or _REQUEST.search(sentence) is not None)
