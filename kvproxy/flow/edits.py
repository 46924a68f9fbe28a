"""Edits that give prompts a common prefix, before the lookups and the backend."""

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, dumps, field, objects
from kvproxy.settings.edits import EditSettings

_TURNS = ("messages", "input")
_SYSTEM_FIELDS = ("system", "instructions")
_PLAIN = ("prompt", "input")
_SYSTEM = ("system", "developer")


def apply_edits(request: ApiRequest, edits: Sequence[EditSettings]) -> ApiRequest:
    """Return a request with all matching edits applied, before its key is computed.

    Requests that differ only in a removed span then share one answer.
    """
    body, names = request.body, list[str]()
    for edit in edits:
        changed = _apply_edit(body, edit) if fnmatchcase(request.model, edit.model) else None
        if changed is not None:
            body = changed
            names.append(edit.name)
    if not names:
        return request
    # For listings, the journal, and savings.
    tags = (*request.control.tags, *(f"edit:{name}" for name in names))
    return replace(request, body=body, raw=dumps(body), control=replace(request.control, tags=tags))


def _apply_edit(body: JsonObject, edit: EditSettings) -> JsonObject | None:
    if edit.action == "sort-tools":
        tools = objects(body.get("tools"))
        ordered: list[Json] = [*sorted(tools, key=_tool_name)]
        return {**body, "tools": ordered} if ordered != tools else None
    scissors = _SpanRemover(edit)
    changed = scissors.body(body)
    if not scissors.taken:
        return None
    return changed if edit.action == "strip" else _with_span(changed, f"{edit.lead}{scissors.taken[0]}")


class _SpanRemover:
    """Removes a span from every text of a role."""

    def __init__(self, edit: EditSettings) -> None:
        self._role = edit.role
        self._pattern = re.compile(edit.pattern or r"\Z()", re.DOTALL)
        self.taken: list[str] = []

    def body(self, body: JsonObject) -> JsonObject:
        changed = dict(body)
        if self._role == "system":
            changed |= {name: self._content(body[name]) for name in _SYSTEM_FIELDS if name in body}
        for name in _TURNS:
            turns = body.get(name)
            if isinstance(turns, list):
                changed[name] = [self._turn(turn) for turn in turns]
        for name in _PLAIN:
            if self._role == "prompt" and isinstance(body.get(name), str):
                changed[name] = self._content(body[name])
        return changed

    def _turn(self, turn: Json) -> Json:
        role = field(turn, "role")
        fits = role in _SYSTEM if self._role == "system" else role == self._role
        if not (fits and isinstance(turn, dict) and "content" in turn):
            return turn
        return {**turn, "content": self._content(turn["content"])}

    def _content(self, content: Json) -> Json:
        if isinstance(content, str):
            return self._text(content)
        if isinstance(content, list):
            return [self._part(part) for part in content]
        return content

    def _part(self, part: Json) -> Json:
        text = field(part, "text")
        return {**part, "text": self._text(text)} if isinstance(part, dict) and isinstance(text, str) else part

    def _text(self, text: str) -> str:
        found = self._pattern.search(text)
        if found is None or not found.group(1):
            return text
        self.taken.append(found.group(1))
        return text[: found.start(1)] + text[found.end(1) :]


def _with_span(body: JsonObject, span: str) -> JsonObject | None:
    for name in _TURNS:
        turns = body.get(name)
        if isinstance(turns, list) and turns:
            last = turns[-1]
            if not isinstance(last, dict) or last.get("role") != "user":
                return None
            return {**body, name: [*turns[:-1], {**last, "content": _append_text(last.get("content"), span)}]}
    for name in _PLAIN:
        if isinstance(body.get(name), str):
            return {**body, name: _append_text(body[name], span)}
    return None


def _append_text(content: Json, span: str) -> Json:
    if isinstance(content, list):
        kind = "input_text" if any(field(part, "type") == "input_text" for part in content) else "text"
        return [*content, {"type": kind, "text": span}]
    return f"{content or ''}\n\n{span}"


def _tool_name(tool: JsonObject) -> str:
    name = field(tool.get("function"), "name") or tool.get("name")
    return f"{name} {dumps(tool).decode()}"
