"""A prompt without a span that changes: stripped, or moved behind everything that stays."""

import re
from dataclasses import dataclass
from typing import Literal

from kvproxy.apis.embedded.speaker import Conversation, PromptForm
from kvproxy.apis.json import JsonObject, text_of
from kvproxy.traffic.regions import tool_name
from kvproxy.traffic.spans import PATTERNS, Span

Action = Literal["strip", "move"]


@dataclass(frozen=True, slots=True)
class Edit:
    """Takes one span out of every prompt of a family.

    Attributes:
        role: of the messages that it is looked for in; None for plain prompts, and for the order of tools.
        pattern: a regular expression whose group 1 is the span; None puts the tools in order.
        lead: what stands before a span that is moved, so that a reader knows what it is.
    """

    role: str | None
    pattern: str | None
    lead: str = ""

    def apply(self, form: PromptForm, action: Action) -> PromptForm:
        """A prompt with the span stripped, or moved to the end of its last message."""
        if isinstance(form, str):
            text, span = self._cut(form)
            return self._with(text, span, action)
        if not isinstance(form, Conversation):
            return form
        if self.pattern is None:
            return Conversation(form.messages, tuple(sorted(form.tools, key=tool_name)))
        messages, taken = list(form.messages), ""
        for place, message in enumerate(messages):
            content = text_of(message.get("content"))
            if message.get("role") == self.role and content:
                text, span = self._cut(content)
                taken = taken or span
                messages[place] = {**message, "content": text}
        if taken and action == "move":
            messages[-1] = self._told(messages[-1], taken)
        return Conversation(tuple(messages), form.tools)

    def _cut(self, text: str) -> tuple[str, str]:
        """A text without the span, and the span; the text itself where it has none."""
        found = re.search(self.pattern or "", text, re.DOTALL)
        if found is None or not found.group(1):
            return text, ""
        return text[: found.start(1)] + text[found.end(1) :], found.group(1)

    def _told(self, message: JsonObject, span: str) -> JsonObject:
        return {**message, "content": self._with(text_of(message.get("content")) or "", span, "move")}

    def _with(self, text: str, span: str, action: Action) -> str:
        return f"{text}\n\n{self.lead}{span}" if span and action == "move" else text


def edit_of(span: Span) -> Edit:
    """The edit that takes a span, and those like it, out of a family's prompts."""
    if span.kind == "order of tools":
        return Edit(None, None)
    if span.kind == "billing header":
        return Edit(span.role, r"\A(?:.*\n)??([^\n]*billing-header[^\n]*\n?)")
    before, after = _loose(span.before), _loose(span.after)
    shape = next((pattern for kind, pattern in PATTERNS if kind == span.kind and _fits(pattern, span)), None)
    lead = re.split(r"\n|(?<=[.:;!?]) ", span.before)[-1]
    if shape is not None:
        return Edit(span.role, rf"{before or chr(92) + 'A'}({shape})", lead)
    return Edit(span.role, rf"{before or chr(92) + 'A'}(.*?){after or chr(92) + 'Z'}", lead)


def _fits(pattern: str, span: Span) -> bool:
    return all(re.fullmatch(pattern, text) for text in (span.old, span.new))


def _loose(text: str) -> str:
    """A text as a pattern in which every digit stands for any."""
    return re.sub(r"\d", r"\\d", re.escape(text))
