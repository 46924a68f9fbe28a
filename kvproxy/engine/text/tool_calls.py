"""Tool calls in the format of a model's chat template, which is learned from two rendered calls.

An output is a tool call if it begins with the same character as the rendered calls. A grammar ensures that a call is
complete, names a known tool, and has arguments that match the tool's schema.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvproxy.apis.codecs.generation import Delta, Grammar, ToolCall

Render = Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Any]], bool], str]
_NAMES = ("first_made_up_tool", "second_made_up_tool")
_ARGUMENTS = {"made_up_argument": 1}
_SAMPLE_TEXT = "made up words"
# JSON on one line. With flexible whitespace, a small model may write newlines until `max_tokens`.
COMPACT_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """The texts around tool calls: `begin` NAME `middle` ARGUMENTS (`between` NAME `middle` ARGUMENTS)* `end`."""

    begin: str
    middle: str
    between: str
    end: str
    special_tokens: Mapping[str, int]  # their ids; an output's text omits these tokens

    def grammar(self, schemas: Mapping[str, Mapping[str, Any]], *, required: bool, parallel: bool) -> Grammar:
        """Return a grammar for one tool call, or several if `parallel`. Unless `required`, it also accepts plain text."""
        names = {name: f"call_{place}" for place, name in enumerate(schemas)}
        more = f" ({self._to_lark_terminals(self.between)} call)*" if parallel else ""
        rules = [
            f"calls: {self._to_lark_terminals(self.begin)} call{more} {self._to_lark_terminals(self.end)}",
            f"call: {' | '.join(names.values())}",
            *(
                f"{rule}: {self._to_lark_terminals(name + self.middle)} arguments_{rule}\narguments_{rule}: %json"
                f" {json.dumps({**schemas[name], 'x-guidance': COMPACT_JSON}, ensure_ascii=False)}"
                for name, rule in names.items()
            ),
        ]
        if required:
            return Grammar("lark", "\n".join(["start: calls", *rules]))
        # Text must not begin like a call, so that the first character decides between text and calls.
        text = f"TEXT: /[^{_escape_for_character_class(self.opening_text[0])}](.|\\n)*/"
        return Grammar("lark", "\n".join(["start: (TEXT | calls)?", text, *rules]))

    @property
    def opening_text(self) -> str:
        return self.visible_text(self.begin)

    def visible_text(self, text: str) -> str:
        for token in self.special_tokens:
            text = text.replace(token, "")
        return text

    def _to_lark_terminals(self, text: str) -> str:
        parts, rest, ids = [], text, self.special_tokens
        while rest:
            at, token = min(
                ((rest.find(special), special) for special in ids if special in rest), default=(len(rest), "")
            )
            parts += [json.dumps(rest[:at], ensure_ascii=False)] if at else []
            parts += [f"<[{ids[token]}]>"] if token else []
            rest = rest[at + len(token) :]
        return " ".join(parts) or '""'


def learn_tool_call_format(render: Render, special_tokens: Mapping[str, int]) -> ToolCallFormat | None:
    """Learn the format of the chat template that `render` applies; None if the format is not supported."""
    for written in (_ARGUMENTS, json.dumps(_ARGUMENTS)):
        try:
            form = _learn_with_arguments(render, special_tokens, written)
        except Exception:
            # Templates raise arbitrary errors for unsupported messages.
            continue
        if form is not None:
            return form
    return None


def _learn_with_arguments(render: Render, special_tokens: Mapping[str, int], arguments: Any) -> ToolCallFormat | None:
    user = {"role": "user", "content": "?"}
    tools = [_sample_tool(name) for name in _NAMES]
    calls = [
        {"id": f"call{place:05}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, name in enumerate(_NAMES)
    ]
    before = render([user], tools, True)
    if not all(name in before for name in _NAMES):
        return None

    def render_answer(message: dict[str, Any]) -> str:
        text = render([user, {"role": "assistant", **message}], tools, False)
        if not text.startswith(before):
            raise ValueError("the template renders the beginning of an answer inconsistently")
        return text[len(before) :]

    plain = render_answer({"content": _SAMPLE_TEXT})
    if not plain.startswith(_SAMPLE_TEXT):
        return None
    turn_end = plain[len(_SAMPLE_TEXT) :]
    one = _split_at_tool_calls(render_answer({"content": "", "tool_calls": calls[:1]}), _NAMES[:1])
    two = _split_at_tool_calls(render_answer({"content": "", "tool_calls": calls}), _NAMES)
    if one is None or two is None or not one[-1].endswith(turn_end):
        return None
    begin, middle, rest = one
    end = rest[: len(rest) - len(turn_end)]
    form = ToolCallFormat(begin, middle, two[2], end, special_tokens)
    if two != [begin, middle, form.between, middle, rest] or any("call0" in part for part in two):
        return None
    return form if form.opening_text and not form.opening_text[0].isspace() and form.visible_text(middle) else None


def _sample_tool(name: str) -> dict[str, Any]:
    properties = {argument: {"type": "integer", "description": "made up"} for argument in _ARGUMENTS}
    parameters = {"type": "object", "properties": properties, "required": list(_ARGUMENTS)}
    return {"type": "function", "function": {"name": name, "description": "made up", "parameters": parameters}}


def _split_at_tool_calls(text: str, names: Sequence[str]) -> list[str] | None:
    parts, at = [], 0
    for name in names:
        start = text.find(name, at)
        brace = text.find("{", start + len(name)) if start >= 0 else -1
        if brace < 0:
            return None
        value, stop = json.JSONDecoder().raw_decode(text, brace)
        if value != _ARGUMENTS:
            return None
        parts += [text[at:start], text[start + len(name) : brace]]
        at = stop
    return [*parts, text[at:]]


def _escape_for_character_class(letter: str) -> str:
    return f"\\{letter}" if letter in "\\]^-/" else letter


class ToolCallParser:
    def __init__(self, form: ToolCallFormat) -> None:
        self._form = form
        self._texts: dict[int, str | None] = {}  # unparsed text of each sequence; None if it is not a call

    def parse(self, delta: Delta) -> Delta:
        """Move complete tool calls from the delta's text to `calls`. The text of incomplete calls is held back."""
        if delta.index not in self._texts and delta.text:
            self._texts[delta.index] = "" if delta.text[0] == self._form.opening_text[0] else None
        text = self._texts.get(delta.index)
        if text is None:
            return delta
        calls, self._texts[delta.index] = self._split_calls(text + delta.text)
        return replace(delta, text="", calls=tuple(calls))

    def _split_calls(self, text: str) -> tuple[list[ToolCall], str]:
        form = self._form
        calls: list[ToolCall] = []
        middle = form.visible_text(form.middle)
        openings = [opening for opening in (form.opening_text, form.visible_text(form.between)) if opening]
        while opening := next((opening for opening in openings if text.startswith(opening)), ""):
            name, _, rest = text[len(opening) :].partition(middle)
            try:
                _, stop = json.JSONDecoder().raw_decode(rest)
            except ValueError:
                break
            calls.append(ToolCall(name, rest[:stop]))
            text = rest[stop:]
        return calls, text
