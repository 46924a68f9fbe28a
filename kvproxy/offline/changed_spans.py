"""Finds the first changed span between two prompts: a difference, such as a date, before equal text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kvproxy.apis.codecs.codec import Conversation, PromptInput
from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.offline.prompt_regions import TOOLS, Region, prompt_regions, tool_line

Kind = Literal["date", "time", "id", "number", "billing header", "order of tools", "text"]

_PIECE = re.compile(r"\w+|[^\w\s]|\s+")
_WORDS_THAT_END_A_SPAN = 16
_CONTEXT = 24
_MAX_SPAN_CHARACTERS = 400
_BILLING = "billing-header"
VOLATILE_PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("date", r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"),
    ("date", r"(?:\w{3,9},? )?(?:\d{1,2} \w{3,9}|\w{3,9} \d{1,2}),? \d{4}"),
    ("time", r"\d{1,2}:\d{2}(?::\d{2})?(?: ?[AaPp][Mm])?"),
    ("id", r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
    ("number", r"[+-]?\d[\d,_]*(?:\.\d+)?"),
    ("id", r"(?=\S*\d)[\w.:/=+-]{5,}"),
)


@dataclass(frozen=True, slots=True)
class ChangedSpan:
    """A span of text that differs between two prompts.

    Attributes:
        region: name of its region, see `Region.name`.
        role: role of its message; None in tools and in a prompt without messages.
        at: index of its first character in the region of the later prompt.
        old, new: text of the span in the earlier and in the later prompt.
        before, after: up to 24 equal characters before and after the span.
        recomputed_words: number of equal words after the span, which a prefix cache cannot reuse because of the span.
    """

    region: str
    role: str | None
    at: int
    old: str
    new: str
    before: str
    after: str
    kind: Kind
    recomputed_words: int

    @property
    def key(self) -> tuple[str, str | None, str, str]:
        """Identifies the span in all pairs of prompts, although its text changes."""
        return self.kind, self.role, without_digits(self.before[-12:]), self.region if self.role is None else ""


def without_digits(text: str) -> str:
    return re.sub(r"\d", "0", text)


def find_changed_span(old: PromptInput, new: PromptInput) -> ChangedSpan | None:
    """Return the first changed span; None if the prompts are unrelated, or if one prompt continues the other."""
    if isinstance(old, Conversation) and isinstance(new, Conversation):
        lines = [sorted(map(tool_line, form.tools)) for form in (old, new)]
        if lines[0] == lines[1] and [*map(tool_line, old.tools)] != [*map(tool_line, new.tools)]:
            lost = len(_split("\n".join(lines[1]))) + sum(len(_split(each.text)) for each in prompt_regions(new)[1:])
            return ChangedSpan(TOOLS, None, 0, "", "", "", "", "order of tools", lost)
    old_regions, new_regions = prompt_regions(old), prompt_regions(new)
    same = common_prefix_length(old_regions, new_regions)
    if same == min(len(old_regions), len(new_regions)) or old_regions[same].name != new_regions[same].name:
        return None
    return _span_within_region(old_regions[same:], new_regions[same:], new)


def _span_within_region(old: Sequence[Region], new: Sequence[Region], form: PromptInput) -> ChangedSpan | None:
    one, other = _split(old[0].text), _split(new[0].text)
    same = common_prefix_length(one, other)
    resumed = _find_equal_run(one[same:], other[same:])
    if resumed is None:
        rest = _count_equal_words(old[1:], new[1:])
        if rest < _WORDS_THAT_END_A_SPAN or len(old[0].text) > _MAX_SPAN_CHARACTERS + len(new[0].text):
            return None
        skip_old, skip_new, lost = len(one) - same, len(other) - same, rest
    else:
        skip_old, skip_new, lost = resumed
        lost += _count_equal_words(old[1:], new[1:])
    at = len("".join(other[:same]))
    ends = at + len("".join(one[same : same + skip_old])), at + len("".join(other[same : same + skip_new]))
    kind, at, end_old, end_new = _classify_span(old[0].text, new[0].text, at, *ends)
    before, after = new[0].text[max(0, at - _CONTEXT) : at], new[0].text[end_new : end_new + _CONTEXT]
    role = None
    if isinstance(form, Conversation) and new[0].message is not None:
        role = str(form.messages[new[0].message].get("role"))
    was, now = old[0].text[at:end_old], new[0].text[at:end_new]
    return ChangedSpan(new[0].name, role, at, was, now, before, after, kind, lost)


def _find_equal_run(one: Sequence[str], other: Sequence[str]) -> tuple[int, int, int] | None:
    runs: dict[tuple[str, ...], int] = {}
    for place in range(len(one) - 2 * _WORDS_THAT_END_A_SPAN, -1, -1):
        runs[tuple(one[place : place + 2 * _WORDS_THAT_END_A_SPAN])] = place
    for place in range(len(other) - 2 * _WORDS_THAT_END_A_SPAN + 1):
        found = runs.get(tuple(other[place : place + 2 * _WORDS_THAT_END_A_SPAN]))
        if found is not None:
            length = common_prefix_length(one[found:], other[place:])
            return found, place, (length + 1) // 2
    tail = common_prefix_length(one[::-1], other[::-1])
    if tail // 2 >= _WORDS_THAT_END_A_SPAN // 2:
        return len(one) - tail, len(other) - tail, (tail + 1) // 2
    return None


def _count_equal_words(old: Sequence[Region], new: Sequence[Region]) -> int:
    return sum((len(_split(region.text)) + 1) // 2 for region in new[: common_prefix_length(old, new)])


def _classify_span(old: str, new: str, at: int, end_old: int, end_new: int) -> tuple[Kind, int, int, int]:
    line = new.rfind("\n", 0, at) + 1
    if _BILLING in new[line:end_new] and _BILLING in old[line:end_old]:
        return "billing header", line, end_old, end_new
    for kind, pattern in VOLATILE_PATTERNS:
        one, other = _widen_match(pattern, old, line, at, end_old), _widen_match(pattern, new, line, at, end_new)
        if one is not None and other is not None and one.start() == other.start():
            return kind, other.start(), one.end(), other.end()
    return "text", *_word_span(old, new, at, end_old, end_new)


def _word_span(old: str, new: str, at: int, end_old: int, end_new: int) -> tuple[int, int, int]:
    """Widen a span of replaced text to whole words, without equal white space at its ends. Inserted text keeps its ends."""
    while at < min(end_old, end_new) and new[at] == old[at] and new[at].isspace():
        at += 1
    while at < min(end_old, end_new) and new[end_new - 1] == old[end_old - 1] and new[end_new - 1].isspace():
        end_new, end_old = end_new - 1, end_old - 1
    if at in (end_old, end_new):
        return at, end_old, end_new
    splits_word = not (new[end_new - 1].isspace() and old[end_old - 1].isspace())
    if not (new[at].isspace() and old[at].isspace()):
        while at and not new[at - 1].isspace():
            at -= 1
    while splits_word and end_new < len(new) and end_old < len(old):
        if new[end_new] != old[end_old] or new[end_new].isspace():
            break
        end_new, end_old = end_new + 1, end_old + 1
    return at, end_old, end_new


def _widen_match(pattern: str, text: str, line: int, at: int, end: int) -> re.Match[str] | None:
    found = re.compile(pattern).finditer(text, line, end + _MAX_SPAN_CHARACTERS)
    return next((match for match in found if match.start() <= at and match.end() >= end), None)


def _split(text: str) -> list[str]:
    return _PIECE.findall(text)


def describe_span(span: ChangedSpan) -> Iterator[str]:
    if span.kind == "order of tools":
        yield "the order of the tools"
        return
    yield f"{span.kind} at character {span.at} of the {span.region}"
    yield f"{_shorten(span.old)!r} became {_shorten(span.new)!r}"


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]}...{text[-12:]}"
