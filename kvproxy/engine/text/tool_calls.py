"""Calls of tools as a chat template writes them, learned from the template itself: it writes two calls that we make up.

What a model says is a call where it begins as the template begins calls, and is text otherwise. A grammar sees to it that a call
is complete, names a tool that is there, and that its arguments fit the tool's schema.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvproxy.generation import Delta, Grammar, ToolCall

Render = Callable[[Sequence[dict[str, Any]], Sequence[dict[str, Any]], bool], str]
"""Text of a conversation: of messages and tools, and whether it ends where the assistant speaks."""
_NAMES = ("first_made_up_tool", "second_made_up_tool")
_ARGUMENTS = {"made_up_argument": 1}
_SAYS = "made up words"
_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """What surrounds calls: `begin` NAME `middle` ARGUMENTS (`between` NAME `middle` ARGUMENTS)* `end`.

    Attributes:
        special: the tokens that are not part of an answer's text, by their writing.
    """

    begin: str
    middle: str
    between: str
    end: str
    special: Mapping[str, int]

    def grammar(self, schemas: Mapping[str, Mapping[str, Any]], *, required: bool, parallel: bool) -> Grammar:
        """Calls of tools, whose parameters' schemas are given by name; or text, where no call is required."""
        names = {name: f"call_{place}" for place, name in enumerate(schemas)}
        more = f" ({self._lark(self.between)} call)*" if parallel else ""
        rules = [
            f"calls: {self._lark(self.begin)} call{more} {self._lark(self.end)}",
            f"call: {' | '.join(names.values())}",
            *(
                f"{rule}: {self._lark(name + self.middle)} arguments_{rule}\narguments_{rule}: %json"
                f" {json.dumps({**schemas[name], 'x-guidance': _JSON}, ensure_ascii=False)}"
                for name, rule in names.items()
            ),
        ]
        if required:
            return Grammar("lark", "\n".join(["start: calls", *rules]))
        # What begins like a call is one, so that it is known from the first character on what is being said.
        text = f"TEXT: /[^{_in_class(self.opening[0])}](.|\\n)*/"
        return Grammar("lark", "\n".join(["start: (TEXT | calls)?", text, *rules]))

    @property
    def opening(self) -> str:
        """What text of an answer begins with where it is a call."""
        return self.spoken(self.begin)

    def spoken(self, text: str) -> str:
        """A text without special tokens, as it comes in an answer."""
        for token in self.special:
            text = text.replace(token, "")
        return text

    def _lark(self, text: str) -> str:
        """A text as literals of a grammar, and special tokens by their number."""
        parts, rest = [], text
        while rest:
            at, token = min(((rest.find(each), each) for each in self.special if each in rest), default=(len(rest), ""))
            parts += [json.dumps(rest[:at], ensure_ascii=False)] if at else []
            parts += [f"<[{self.special[token]}]>"] if token else []
            rest = rest[at + len(token) :]
        return " ".join(parts) or '""'


def learn_tool_call_format(render: Render, special: Mapping[str, int]) -> ToolCallFormat | None:
    """How a template writes calls; None where it has none, or writes them in a way that cannot be read back."""
    for written in (_ARGUMENTS, json.dumps(_ARGUMENTS)):
        try:
            form = _learn(render, special, written)
        except Exception:
            # A template may raise anything, also for what it cannot say.
            continue
        if form is not None:
            return form
    return None


def _learn(render: Render, special: Mapping[str, int], arguments: Any) -> ToolCallFormat | None:
    user = {"role": "user", "content": "?"}
    tools = [_tool(name) for name in _NAMES]
    calls = [
        {"id": f"call{place:05}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, name in enumerate(_NAMES)
    ]
    before = render([user], tools, True)
    if not all(name in before for name in _NAMES):
        return None

    def said(message: dict[str, Any]) -> str:
        text = render([user, {"role": "assistant", **message}], tools, False)
        if not text.startswith(before):
            raise ValueError("the template writes an answer's beginning in two ways")
        return text[len(before) :]

    plain = said({"content": _SAYS})
    if not plain.startswith(_SAYS):
        return None
    turn_end = plain[len(_SAYS) :]
    one = _taken_apart(said({"content": "", "tool_calls": calls[:1]}), _NAMES[:1])
    two = _taken_apart(said({"content": "", "tool_calls": calls}), _NAMES)
    if one is None or two is None or not one[-1].endswith(turn_end):
        return None
    begin, middle, rest = one
    end = rest[: len(rest) - len(turn_end)]
    form = ToolCallFormat(begin, middle, two[2], end, special)
    if two != [begin, middle, form.between, middle, rest] or any("call0" in part for part in two):
        return None
    return form if form.opening and not form.opening[0].isspace() and form.spoken(middle) else None


def _tool(name: str) -> dict[str, Any]:
    properties = {argument: {"type": "integer", "description": "made up"} for argument in _ARGUMENTS}
    parameters = {"type": "object", "properties": properties, "required": list(_ARGUMENTS)}
    return {"type": "function", "function": {"name": name, "description": "made up", "parameters": parameters}}


def _taken_apart(text: str, names: Sequence[str]) -> list[str] | None:
    """What stands before, between and after names and arguments; None where the arguments are no JSON after the name."""
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


def _in_class(letter: str) -> str:
    """A character as part of a regular expression's class."""
    return f"\\{letter}" if letter in "\\]^-/" else letter


class ToolCallParser:
    """Turns the pieces of answers into text and calls.

    Args:
        form: how calls are written.
    """

    def __init__(self, form: ToolCallFormat) -> None:
        self._form = form
        self._heard: dict[int, str] = {}
        self._inside: dict[int, bool] = {}

    def read(self, piece: Delta) -> Delta:
        """A piece as the client gets it: calls are held back until they are complete, and then they are no text."""
        form, index = self._form, piece.index
        if index not in self._inside and piece.text:
            self._inside[index] = piece.text[0] == form.opening[0]
            self._heard[index] = ""
        if not self._inside.get(index):
            return piece
        self._heard[index] += piece.text
        return replace(piece, text="", calls=tuple(self._complete(index)))

    def _complete(self, index: int) -> list[ToolCall]:
        """Calls that are complete now, which are heard no more."""
        form = self._form
        calls: list[ToolCall] = []
        middle = form.spoken(form.middle)
        while True:
            text = self._heard[index]
            start = next(
                (each for each in (form.opening, form.spoken(form.between)) if each and text.startswith(each)), ""
            )
            name, found, rest = text[len(start) :].partition(middle)
            if not found or not start:
                return calls
            try:
                _, stop = json.JSONDecoder().raw_decode(rest)
            except ValueError:
                return calls
            calls.append(ToolCall(name, rest[:stop]))
            self._heard[index] = rest[stop:]
