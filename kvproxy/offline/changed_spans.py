"""The first span of a prompt that differs from an earlier one although what follows it is the same again."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kvproxy.apis.codecs.codec import Conversation, PromptInput
from kvproxy.offline.prompt_regions import TOOLS, Region, regions_of, written

Kind = Literal["date", "time", "id", "number", "billing header", "order of tools", "text"]

_PIECE = re.compile(r"\w+|[^\w\s]|\s+")
_SAME_AGAIN = 16
"""Words that must be equal in a row, for what follows a span to be the same again; about a block of tokens."""
_ANCHOR = 24
_LONGEST = 400
"""Characters of a span that is shown and stripped; longer ones are texts of their own."""
_BILLING = "billing-header"
PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("date", r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"),
    ("date", r"(?:\w{3,9},? )?(?:\d{1,2} \w{3,9}|\w{3,9} \d{1,2}),? \d{4}"),
    ("time", r"\d{1,2}:\d{2}(?::\d{2})?(?: ?[AaPp][Mm])?"),
    ("id", r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
    ("number", r"[+-]?\d[\d,_]*(?:\.\d+)?"),
    ("id", r"(?=\S*\d)[\w.:/=+-]{5,}"),
)
"""What a span may be, the most telling first."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span that changed.

    Attributes:
        region: its region's name.
        role: of the message it stands in; None in tools and plain prompts.
        at: its first character in the region.
        old, new: what stood there, and what stands there now.
        before, after: what stands around it, in both.
        kind: what it looks like.
        lost: words after it that are the same, and are computed again.
    """

    region: str
    role: str | None
    at: int
    old: str
    new: str
    before: str
    after: str
    kind: Kind
    lost: int

    @property
    def place(self) -> tuple[str, str | None, str, str]:
        """What tells it from other spans of a family."""
        # What precedes a span may itself hold digits that change.
        return self.kind, self.role, re.sub(r"\d", "0", self.before[-12:]), self.region if self.role is None else ""


def changed_span(old: PromptInput, new: PromptInput) -> Span | None:
    """Where a prompt left an earlier one, if what follows is the same again; None for a continuation or another prompt."""
    if isinstance(old, Conversation) and isinstance(new, Conversation):
        lines = [sorted(map(written, form.tools)) for form in (old, new)]
        if lines[0] == lines[1] and [*map(written, old.tools)] != [*map(written, new.tools)]:
            lost = len(_pieces("\n".join(lines[1]))) + sum(len(_pieces(each.text)) for each in regions_of(new)[1:])
            return Span(TOOLS, None, 0, "", "", "", "", "order of tools", lost)
    return _text_span(regions_of(old), regions_of(new), new)


def _text_span(old: Sequence[Region], new: Sequence[Region], form: PromptInput) -> Span | None:
    for place, (one, other) in enumerate(zip(old, new, strict=False)):
        if one.name != other.name:
            return None
        if one.text != other.text:
            return _within(old[place:], new[place:], form)
    return None


def _within(old: Sequence[Region], new: Sequence[Region], form: PromptInput) -> Span | None:
    """The span with which the first of some regions begins to differ."""
    one, other = _pieces(old[0].text), _pieces(new[0].text)
    same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    again = _again(one[same:], other[same:])
    if again is None:
        rest = _equal_regions(old[1:], new[1:])
        # A region that goes on where the other ended is a turn that was added to, and no span.
        if rest < _SAME_AGAIN or len(old[0].text) > _LONGEST + len(new[0].text):
            return None
        skip_old, skip_new, lost = len(one) - same, len(other) - same, rest
    else:
        skip_old, skip_new, lost = again
        lost += _equal_regions(old[1:], new[1:])
    at = len("".join(other[:same]))
    ends = at + len("".join(one[same : same + skip_old])), at + len("".join(other[same : same + skip_new]))
    kind, at, end_old, end_new = _shaped(old[0].text, new[0].text, at, *ends)
    before, after = new[0].text[max(0, at - _ANCHOR) : at], new[0].text[end_new : end_new + _ANCHOR]
    role = None
    if isinstance(form, Conversation) and new[0].message is not None:
        role = str(form.messages[new[0].message].get("role"))
    was, now = old[0].text[at:end_old], new[0].text[at:end_new]
    return Span(new[0].name, role, at, was, now, before, after, kind, lost)


def _again(one: Sequence[str], other: Sequence[str]) -> tuple[int, int, int] | None:
    """Pieces to leave out of each until they are the same again, and how many words then are."""
    runs: dict[tuple[str, ...], int] = {}
    for place in range(len(one) - 2 * _SAME_AGAIN, -1, -1):
        runs[tuple(one[place : place + 2 * _SAME_AGAIN])] = place
    for place in range(len(other) - 2 * _SAME_AGAIN + 1):
        found = runs.get(tuple(other[place : place + 2 * _SAME_AGAIN]))
        if found is not None:
            length = _common(one[found:], other[place:])
            return found, place, (length + 1) // 2
    tail = _common(one[::-1], other[::-1])
    if tail // 2 >= _SAME_AGAIN // 2 and tail < min(len(one), len(other)) + 1:
        return len(one) - tail, len(other) - tail, (tail + 1) // 2
    return None


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _equal_regions(old: Sequence[Region], new: Sequence[Region]) -> int:
    """Words of the regions that are equal from the first on."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += (len(_pieces(other.text)) + 1) // 2
    return count


def _shaped(old: str, new: str, at: int, end_old: int, end_new: int) -> tuple[Kind, int, int, int]:
    """What a span looks like, and where it begins and ends in both texts with all that belongs to it."""
    line = new.rfind("\n", 0, at) + 1
    if _BILLING in new[line:end_new] and _BILLING in old[line:end_old]:
        return "billing header", line, end_old, end_new
    for kind, pattern in PATTERNS:
        one, other = _around(pattern, old, line, at, end_old), _around(pattern, new, line, at, end_new)
        if one is not None and other is not None and one.start() == other.start():
            return kind, other.start(), one.end(), other.end()
    while at and not new[at - 1].isspace():
        at -= 1
    while end_new < len(new) and end_old < len(old) and new[end_new] == old[end_old] and not new[end_new].isspace():
        end_new, end_old = end_new + 1, end_old + 1
    return "text", at, end_old, end_new


def _around(pattern: str, text: str, line: int, at: int, end: int) -> re.Match[str] | None:
    """The match that holds a part of a line, if there is one."""
    found = re.compile(pattern).finditer(text, line, end + _LONGEST)
    return next((match for match in found if match.start() <= at and match.end() >= end), None)


def _pieces(text: str) -> list[str]:
    return _PIECE.findall(text)


def described(span: Span) -> Iterator[str]:
    """Its parts for a person: what it is, where it stands, and how it changed."""
    if span.kind == "order of tools":
        yield "the order of the tools"
        return
    yield f"{span.kind} at character {span.at} of the {span.region}"
    yield f"{_short(span.old)!r} became {_short(span.new)!r}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]}...{text[-12:]}"
