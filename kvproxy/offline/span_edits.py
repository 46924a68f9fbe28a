"""Suggests edits that remove changed spans, and checks that an edit does not match unchanging text."""

import re
from collections import Counter
from collections.abc import Sequence

from kvproxy.offline.changed_spans import VOLATILE_PATTERNS, ChangedSpan
from kvproxy.settings.rules import EditSettings

_BILLING = "billing-header"
_VOLATILE = re.compile("|".join(f"({pattern})" for _, pattern in VOLATILE_PATTERNS))
_PLACEHOLDER = "\0"


def strip_edits(span: ChangedSpan) -> list[EditSettings]:
    """Return edits that remove the span from prompts, whatever its current text; later edits match less."""
    if span.kind == "order of tools":
        return [EditSettings(name="tools", action="sort-tools")]
    role = span.role if span.role in ("user", "assistant") else "prompt" if span.role is None else "system"
    name = span.kind.replace(" ", "-")
    if span.kind == "billing header":
        pattern = r"\A(?:.*\n)??([^\n]*billing-header[^\n]*\n?)"
        return [EditSettings(name=name, action="strip", role=role, pattern=pattern)]
    lead = re.split(r"\n|(?<=[.:;!?]) ", span.before)[-1]
    return [
        EditSettings(name=name, action="strip", role=role, pattern=pattern, lead=lead) for pattern in _patterns(span)
    ]


def move_edit(edit: EditSettings) -> EditSettings:
    return edit.model_copy(update={"action": "move"})


def matches_only_changes(edit: EditSettings, matches: Sequence[Sequence[str]]) -> bool:
    """Return whether the matched texts change between the prompts of a family.

    Text without a date, time, id, or number changes only if no text is matched in most prompts.

    Args:
        matches: for each prompt of the family, the texts that the edit matches.
    """
    counts = Counter(text for found in matches for text in found)
    if not counts or edit.action == "sort-tools" or edit.name == _BILLING:
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
    """Return whether all texts begin or end with the same word."""
    words = [_VOLATILE.sub(f" {_PLACEHOLDER} ", text).split() for text in texts]
    ends = ({each[place] if each else _PLACEHOLDER for each in words} for place in (0, -1))
    return any(len(found) == 1 and any(map(str.isalpha, *found)) for found in ends)


def _patterns(span: ChangedSpan) -> list[str]:
    before, after = _digit_insensitive_pattern(span.before), _digit_insensitive_pattern(span.after) or r"\Z"
    start = r"\A" + before if span.at == len(span.before) else before
    context = before or start
    shape = next(
        (pattern for kind, pattern in VOLATILE_PATTERNS if kind == span.kind and _matches(pattern, span)), None
    )
    if shape is not None:
        return [f"{context}({shape})", f"{context}({shape})(?={after})", f"{start}({shape})(?={after})"]
    found = [
        f"{context}(.*?){after}",
        f"{start}(.*?){after}",
    ]
    shapes = sorted({_shape(text) for text in (span.old, span.new) if _VOLATILE.search(text)})
    if shapes:
        shape = f"({'|'.join(shapes)})"
        found = [
            f"{context}{shape}",
            *found,
            f"{context}{shape}(?={after})",
            f"{start}{shape}(?={after})",
        ]
    return list(dict.fromkeys(found))


def _shape(text: str) -> str:
    """Return a pattern of the text with other dates, times, ids, and numbers."""
    parts, end = [], 0
    for match in _VOLATILE.finditer(text):
        parts += [_escape(text[end : match.start()]), VOLATILE_PATTERNS[(match.lastindex or 1) - 1][1]]
        end = match.end()
    return "".join([*parts, _escape(text[end:])])


def _matches(pattern: str, span: ChangedSpan) -> bool:
    return all(re.fullmatch(pattern, text) for text in (span.old, span.new))


def _digit_insensitive_pattern(text: str) -> str:
    return re.sub(r"\d", r"\\d", _escape(text))


def _escape(text: str) -> str:
    return re.escape(text).replace(r"\ ", " ")
