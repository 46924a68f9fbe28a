"""The edit that takes a changing span, and those like it, out of a family's prompts."""

import re

from kvproxy.offline.changed_spans import PATTERNS, Span
from kvproxy.settings.edits import EditSettings


def edit_of(span: Span) -> EditSettings:
    """The edit that strips a span; see `moving` for the one that moves it."""
    if span.kind == "order of tools":
        return EditSettings(name="tools", action="sort-tools")
    role = span.role if span.role in ("user", "assistant") else "prompt" if span.role is None else "system"
    name = span.kind.replace(" ", "-")
    if span.kind == "billing header":
        pattern = r"\A(?:.*\n)??([^\n]*billing-header[^\n]*\n?)"
        return EditSettings(name=name, action="strip", role=role, pattern=pattern)
    before, after = _loose(span.before), _loose(span.after)
    shape = next((pattern for kind, pattern in PATTERNS if kind == span.kind and _fits(pattern, span)), None)
    lead = re.split(r"\n|(?<=[.:;!?]) ", span.before)[-1]
    end = f"({shape})" if shape is not None else rf"(.*?){after or chr(92) + 'Z'}"
    pattern = (before or r"\A") + end
    return EditSettings(name=name, action="strip", role=role, pattern=pattern, lead=lead)


def moving(edit: EditSettings) -> EditSettings:
    """The same edit, moving what it strips."""
    return edit.model_copy(update={"action": "move"})


def _fits(pattern: str, span: Span) -> bool:
    return all(re.fullmatch(pattern, text) for text in (span.old, span.new))


def _loose(text: str) -> str:
    """A text as a pattern in which every digit stands for any."""
    return re.sub(r"\d", r"\\d", re.escape(text).replace(r"\ ", " "))
