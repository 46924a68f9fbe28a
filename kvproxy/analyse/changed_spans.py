"""Finds the first changed span between two prompts (a difference, such as a date, before equal text), and edits against it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvproxy.analyse.prompt_families import TOOLS, Region, prompt_regions, tool_line
from kvproxy.apis.codecs.codec import Conversation, PromptInput
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.settings.rules import EditSettings

Kind = Literal[
    "date",
    "time",
    "id",
    "number",
    "billing header",
    "order of tools",
    "order of properties",
    "dropped tools",
    "moving text",
    "text",
]

_PIECE = re.compile(r"\w+|[^\w\s]|\s+")
_WORDS_THAT_END_A_SPAN = 16
_CONTEXT = 24
_MAX_SPAN_CHARACTERS = 400
_BILLING = "billing-header"
_MOVING = "moving-text"
_ELEMENT = re.compile(r"\s*<([A-Za-z][\w-]*)\b[^>]*>.*</\1>\s*", re.DOTALL)
_MIN_MOVING_CHARACTERS = 12
_VOLATILE_PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("date", r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"),
    ("date", r"(?:\w{3,9},? )?(?:\d{1,2} \w{3,9}|\w{3,9} \d{1,2}),? \d{4}"),
    ("time", r"\d{1,2}:\d{2}(?::\d{2})?(?: ?[AaPp][Mm])?"),
    ("id", r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"),
    ("number", r"[+-]?\d[\d,_]*(?:\.\d+)?"),
    ("id", r"(?=\S*\d)[\w.:/=+-]{5,}"),
)
_VOLATILE = re.compile("|".join(f"({pattern})" for _, pattern in _VOLATILE_PATTERNS))
_PLACEHOLDER = "\0"


@dataclass(frozen=True, slots=True)
class ChangedSpan:
    """A span of text that differs between two prompts.

    Attributes:
        region: name of its region, see `Region.name`.
        role: role of its message; None in tools and in a prompt without messages.
        at: index of its first character in the region of the later prompt.
        old, new: text of the span in the earlier and in the later prompt.
        before, after: up to 24 characters of the later prompt before and after the span.
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
        kind = _changed_tool_order(old.tools, new.tools)
        if kind is not None and not (kind == "dropped tools" and old.messages[:2] != new.messages[:2]):
            return ChangedSpan(TOOLS, None, 0, "", "", "", "", kind, _num_words(prompt_regions(new)))
    old_regions, new_regions = prompt_regions(old), prompt_regions(new)
    same = common_prefix_length(old_regions, new_regions)
    if same == min(len(old_regions), len(new_regions)) or old_regions[same].name != new_regions[same].name:
        return None
    moved = _moved_text(old_regions[same:], new_regions[same:])
    return moved or _span_within_region(old_regions[same:], new_regions[same:])


def _num_words(regions: Sequence[Region]) -> int:
    return sum(len(_PIECE.findall(region.text)) for region in regions)


def _moved_text(old: Sequence[Region], new: Sequence[Region]) -> ChangedSpan | None:
    """Return a text that a message lost, and that a later message has, such as a reminder in the last message."""
    one, other = old[0].text, new[0].text
    start = common_prefix_length(one, other)
    end = common_prefix_length(one[start:][::-1], other[start:][::-1])
    lost = one[start : len(one) - end]
    if len(other) - end > start or len(lost.strip()) < _MIN_MOVING_CHARACTERS:
        return None
    # The text may begin with the characters that follow it.
    shift = next((shift for shift in range(start + 1) if one[start - shift :].lstrip().startswith("<")), 0)
    if shift and one[start - shift : start] == lost[len(lost) - shift :]:
        lost, start = one[start - shift : start] + lost[: len(lost) - shift], start - shift
    wanted = without_digits(lost).strip()
    if not any(wanted in without_digits(region.text) for region in new[1:] if region.role == old[0].role):
        return None
    before, after = _context(other, start, start)
    kind: Kind = "moving text"
    return ChangedSpan(new[0].name, new[0].role, start, lost, "", before, after, kind, _num_words(new[1:2]))


def _changed_tool_order(old: Sequence[JsonObject], new: Sequence[JsonObject]) -> Kind | None:
    """Return what differs between the tools besides their texts; None if the tools differ, or if nothing does."""
    if old and not new:
        return "dropped tools"
    lines = [list(map(tool_line, tools)) for tools in (old, new)]
    if lines[0] == lines[1]:
        return None
    if sorted(lines[0]) == sorted(lines[1]):
        return "order of tools"
    canonical = [sorted(dumps(tool, sort_keys=True) for tool in tools) for tools in (old, new)]
    return "order of properties" if canonical[0] == canonical[1] else None


def _span_within_region(old: Sequence[Region], new: Sequence[Region]) -> ChangedSpan | None:
    one, other = _PIECE.findall(old[0].text), _PIECE.findall(new[0].text)
    same = common_prefix_length(one, other)
    rest = sum(
        (len(_PIECE.findall(region.text)) + 1) // 2 for region in new[1 : 1 + common_prefix_length(old[1:], new[1:])]
    )
    resumed = _find_equal_run(one[same:], other[same:])
    if resumed is None:
        if rest < _WORDS_THAT_END_A_SPAN or len(old[0].text) > _MAX_SPAN_CHARACTERS + len(new[0].text):
            return None
        resumed = len(one) - same, len(other) - same, 0
    skip_old, skip_new, lost = resumed
    at = len("".join(other[:same]))
    ends = at + len("".join(one[same : same + skip_old])), at + len("".join(other[same : same + skip_new]))
    kind, at, end_old, end_new = _classify_span(old[0].text, new[0].text, at, *ends)
    before, after = _context(new[0].text, at, end_new)
    was, now = old[0].text[at:end_old], new[0].text[at:end_new]
    if kind == "text" and _is_most_of(was, old[0].text) and _is_most_of(now, new[0].text):
        # Another prompt, such as that of another agent with the same tools.
        return None
    return ChangedSpan(new[0].name, new[0].role, at, was, now, before, after, kind, lost + rest)


def _is_most_of(span: str, text: str) -> bool:
    return len(span) > _CONTEXT and 2 * len(span) > len(text)


def _context(text: str, start: int, end: int) -> tuple[str, str]:
    """Return up to 24 characters before and after a span, without parts of words."""
    before, after = text[max(0, start - _CONTEXT) : start], text[end : end + _CONTEXT]
    if start > _CONTEXT and text[start - _CONTEXT - 1].isalnum():
        before = re.sub(r"\A\w+(?=\W.*\w)", "", before, flags=re.DOTALL)
    if text[end + _CONTEXT : end + _CONTEXT + 1].isalnum():
        after = re.sub(r"(\w.*\W)\w+\Z", r"\1", after, flags=re.DOTALL)
    return before, after


def _find_equal_run(one: Sequence[str], other: Sequence[str]) -> tuple[int, int, int] | None:
    runs: dict[tuple[str, ...], int] = {}
    for place in range(len(one) - 2 * _WORDS_THAT_END_A_SPAN, -1, -1):
        runs[tuple(one[place : place + 2 * _WORDS_THAT_END_A_SPAN])] = place
    for place in range(len(other) - 2 * _WORDS_THAT_END_A_SPAN + 1):
        start = runs.get(tuple(other[place : place + 2 * _WORDS_THAT_END_A_SPAN]))
        if start is not None:
            length = common_prefix_length(one[start:], other[place:])
            return start, place, (length + 1) // 2
    tail = common_prefix_length(one[::-1], other[::-1])
    if tail // 2 >= _WORDS_THAT_END_A_SPAN // 2:
        return len(one) - tail, len(other) - tail, (tail + 1) // 2
    return None


def _classify_span(old: str, new: str, start: int, end_old: int, end_new: int) -> tuple[Kind, int, int, int]:
    line = new.rfind("\n", 0, start) + 1
    if _BILLING in new[line:end_new] and _BILLING in old[line:end_old]:
        return "billing header", line, end_old, end_new
    for kind, pattern in _VOLATILE_PATTERNS:
        one, other = _widen_match(pattern, old, line, start, end_old), _widen_match(pattern, new, line, start, end_new)
        if one is not None and other is not None and one.start() == other.start():
            return kind, other.start(), one.end(), other.end()
    return "text", *_widen_to_words(old, new, start, end_old, end_new)


def _widen_to_words(old: str, new: str, start: int, end_old: int, end_new: int) -> tuple[int, int, int]:
    while start < min(end_old, end_new) and new[start] == old[start] and new[start].isspace():
        start += 1
    while start < min(end_old, end_new) and new[end_new - 1] == old[end_old - 1] and new[end_new - 1].isspace():
        end_new, end_old = end_new - 1, end_old - 1
    if start in (end_old, end_new):
        return start, end_old, end_new
    splits_word = not (new[end_new - 1].isspace() and old[end_old - 1].isspace())
    if not (new[start].isspace() and old[start].isspace()):
        while start and not new[start - 1].isspace():
            start -= 1
    while splits_word and end_new < len(new) and end_old < len(old):
        if new[end_new] != old[end_old] or new[end_new].isspace():
            break
        end_new, end_old = end_new + 1, end_old + 1
    return start, end_old, end_new


def _widen_match(pattern: str, text: str, line: int, start: int, end: int) -> re.Match[str] | None:
    matches = re.compile(pattern).finditer(text, line, end + _MAX_SPAN_CHARACTERS)
    return next((match for match in matches if match.start() <= start and match.end() >= end), None)


def strip_edits(span: ChangedSpan, *, with_lead: bool = False) -> list[EditSettings]:
    """Return alternative edits that remove the span from prompts, whatever its text, the most general first.

    Args:
        with_lead: also remove a single word before the span if it begins the prompt.
    """
    if span.kind in ("order of tools", "order of properties"):
        return [EditSettings(name="tools", action="sort-tools")]
    if span.kind == "dropped tools":
        return []
    role = span.role if span.role in ("user", "assistant") else "prompt" if span.role is None else "system"
    name = span.kind.replace(" ", "-")
    if span.kind == "billing header":
        pattern = r"\A(?:.*\n)??([^\n]*billing-header[^\n]*\n?)"
        return [EditSettings(name=name, action="strip", role=role, pattern=pattern)]
    if span.kind == "moving text":
        return [EditSettings(name=_MOVING, action="strip", role=role, pattern=_moving_pattern(span.old))]
    lead = re.split(r"\n|(?<=[.;!?]) ", span.before)[-1]
    begins = span.at == len(lead) and re.fullmatch(r"\w+\s+", lead) and not span.after.lstrip()[:1].islower()
    if with_lead and begins:
        return [
            EditSettings(name=name, action="strip", role=role, pattern=pattern) for pattern in _patterns(span, lead)
        ]
    return [
        EditSettings(name=name, action="strip", role=role, pattern=pattern, lead=lead) for pattern in _patterns(span)
    ]


def _moving_pattern(text: str) -> str:
    if (element := _ELEMENT.fullmatch(text)) is not None:
        return rf"((?:\s*<{element[1]}\b[^>]*>.*?</{element[1]}>)+)"
    shown = text.strip()
    if len(shown) > _MAX_SPAN_CHARACTERS:
        ends = (_digit_insensitive_pattern(end) for end in (shown[: _CONTEXT * 2], shown[-_CONTEXT * 2 :]))
        return rf"(\s*{'.*?'.join(ends)})"
    return rf"(\s*{_digit_insensitive_pattern(shown)})"


def add_tools_edit(tools: str, system: str) -> EditSettings:
    """Return the edit that adds tools, as JSON, to requests without tools whose system prompt begins like `system`."""
    pattern = rf"\A({_digit_insensitive_pattern(system[: 2 * _CONTEXT])})"
    return EditSettings(name="dropped-tools", action="add-tools", pattern=pattern, tools=tools)


def move_edit(edit: EditSettings) -> EditSettings:
    return edit.model_copy(update={"action": "move"})


def matches_only_changes(edit: EditSettings, matches: Sequence[Sequence[str]]) -> bool:
    """Return whether an edit matches only text that changes between prompts. `matches` has the matched texts of each prompt."""
    counts = Counter(text for texts in matches for text in texts)
    if not counts or edit.action == "sort-tools" or edit.name in (_BILLING, _MOVING):
        return True
    is_everywhere = all(matches)
    if len(counts) == 1 and is_everywhere and len(matches) > 1:
        return False
    fixed = {text: count for text, count in counts.items() if not _VOLATILE.search(text)}
    most = 1 if len(fixed) < len(counts) else sum(counts.values()) / 2
    if fixed and (len(counts) == 1 or max(fixed.values()) > most):
        return False
    return not ((fixed or is_everywhere) and len(counts) > 1 and _have_common_end(list(counts)))


def _have_common_end(texts: Sequence[str]) -> bool:
    words = [_VOLATILE.sub(f" {_PLACEHOLDER} ", text).split() for text in texts]
    ends = ({text_words[place] if text_words else _PLACEHOLDER for text_words in words} for place in (0, -1))
    return any(len(end_words) == 1 and any(map(str.isalpha, *end_words)) for end_words in ends)


def _patterns(span: ChangedSpan, lead: str = "") -> list[str]:
    def group(pattern: str) -> str:
        span = f"(?:{pattern})" if lead and "|" in pattern else pattern
        return f"({_digit_insensitive_pattern(lead)}{span})"

    before, after = (
        _digit_insensitive_pattern(span.before.removesuffix(lead)),
        _digit_insensitive_pattern(span.after) or r"\Z",
    )
    start = r"\A" + before if span.at == len(span.before) else before
    context = before if lead else before or start
    for kind, shape in _VOLATILE_PATTERNS:
        if kind == span.kind and all(re.fullmatch(shape, text) for text in (span.old, span.new)):
            shape = group(shape)
            return [f"{context}{shape}", f"{context}{shape}(?={after})", f"{start}{shape}(?={after})"]
    patterns = [f"{context}{group('.*?')}{after}", f"{start}{group('.*?')}{after}"]
    shapes = sorted({_value_insensitive_pattern(text) for text in (span.old, span.new) if _VOLATILE.search(text)})
    if shapes:
        shape = group("|".join(shapes))
        patterns = [f"{context}{shape}", *patterns, f"{context}{shape}(?={after})", f"{start}{shape}(?={after})"]
    return list(dict.fromkeys(patterns))


def _value_insensitive_pattern(text: str) -> str:
    parts, end = [], 0
    for match in _VOLATILE.finditer(text):
        parts += [_escape(text[end : match.start()]), _VOLATILE_PATTERNS[(match.lastindex or 1) - 1][1]]
        end = match.end()
    return "".join([*parts, _escape(text[end:])])


def _digit_insensitive_pattern(text: str) -> str:
    return re.sub(r"\d", r"\\d", _escape(text))


def _escape(text: str) -> str:
    return re.escape(text).replace(r"\ ", " ")
