"""Removes or moves variable parts of prompts, such as dates, so that prompts have a longer common prefix."""

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonObject, as_object, dumps, field, loads, objects
from kvproxy.apis.message_parts import TOOL_OUTPUTS, is_json, parts_with_moved_text
from kvproxy.settings.rules import EditSettings

_TURNS = ("messages", "input")
_SYSTEM_FIELDS = ("system", "instructions")
_PLAIN = ("prompt", "input")
_SYSTEM = ("system", "developer")
_RESULTS = ("tool", "function")
_SPOKEN = ("user", *_RESULTS)


def apply_edits(request: ApiRequest, edits: Sequence[EditSettings]) -> ApiRequest:
    """Apply the edits that match the request, and tag the request with their names.

    The cache key is computed afterwards, so requests that differ only in removed text share a response.
    """
    body, names, moved = request.body, list[str](), request.moved_texts
    for edit in edits:
        changed, span = _apply_edit(body, edit) if fnmatchcase(request.model, edit.model) else (None, "")
        if changed is not None:
            body = changed
            names.append(edit.name)
            moved += (span,) if span else ()
    if not names:
        return request
    # For listings, the journal, and savings.
    return replace(request.with_body(body, *(f"edit:{name}" for name in names)), moved_texts=moved)


def matched_spans(request: ApiRequest, edit: EditSettings) -> list[str]:
    """Return the texts that an edit removes or moves; the model of the request is ignored."""
    return _without_spans(request.body, edit)[1] if edit.pattern is not None else []


def _apply_edit(body: JsonObject, edit: EditSettings) -> tuple[JsonObject | None, str]:
    """Return the changed body (None without a change), and the text that was moved to its end."""
    if edit.action == "sort-tools":
        tools = objects(body.get("tools"))
        ordered = [as_object(loads(dumps(tool, sort_keys=True))) for tool in sorted(tools, key=_tool_sort_key)]
        # Equal objects may have another order of properties, which the model reads.
        return {**body, "tools": list[Json](ordered)} if dumps(ordered) != dumps(tools) else None, ""
    if edit.action == "add-tools" and body.get("tools"):
        return None, ""
    changed, spans = _without_spans(body, edit)
    if not spans:
        return None, ""
    if edit.action == "add-tools":
        return _add_tools(body, loads((edit.tools or "[]").encode())), ""
    if edit.action == "strip":
        return changed, ""
    moved = "\n\n".join(f"{edit.lead}{span}" for span in dict.fromkeys(spans))
    return _append_span(changed, moved), moved


def _add_tools(body: JsonObject, tools: Json) -> JsonObject:
    # A client that sent no tools expects no calls.
    is_for_messages = any("input_schema" in tool for tool in objects(tools))
    return {**body, "tools": tools, "tool_choice": {"type": "none"} if is_for_messages else "none"}


def _without_spans(body: JsonObject, edit: EditSettings) -> tuple[JsonObject, list[str]]:
    pattern, spans = re.compile(edit.pattern or r"\Z()", re.DOTALL), list[str]()

    def cut(content: Json) -> Json:
        if isinstance(content, list):
            return [
                {**part, "text": cut(part["text"])} if isinstance(part, dict) and "text" in part else part
                for part in content
            ]
        match = pattern.search(content) if isinstance(content, str) else None
        if not isinstance(content, str) or match is None or not match[1]:
            return content
        spans.append(match[1])
        return content[: match.start(1)] + content[match.end(1) :]

    roles = _SYSTEM if edit.role == "system" else (edit.role,)
    names = _SYSTEM_FIELDS if edit.role == "system" else _PLAIN if edit.role == "prompt" else ()
    changed = body | {name: cut(body[name]) for name in names if name in body}
    for name in _TURNS:
        if isinstance(turns := changed.get(name), list):
            changed[name] = [
                {**turn, "content": cut(turn["content"])}
                if isinstance(turn, dict) and turn.get("role") in roles and "content" in turn
                else turn
                for turn in turns
            ]
    return changed, spans


def _append_span(body: JsonObject, span: str) -> JsonObject | None:
    for name in _TURNS:
        turns = body.get(name)
        if isinstance(turns, list) and turns:
            changed = _append_to_turn(turns[-1], span)
            return None if changed is None else {**body, name: [*turns[:-1], changed]}
    for name in _PLAIN:
        if isinstance(body.get(name), str):
            return {**body, name: _append_text(body[name], span)}
    return None


def _append_to_turn(turn: Json, span: str) -> JsonObject | None:
    """Return the last turn with a text at its end; a result in JSON stays JSON, as a part of its own.

    None for an assistant's turn, for a result without text, and for JSON of the role `function`, which has no parts.

    A user's message behind the results of tools would end the turn, so chat templates would drop its reasoning.
    """
    if not isinstance(turn, dict):
        return None
    place = "content" if turn.get("role") in _SPOKEN else "output" if turn.get("type") in TOOL_OUTPUTS else ""
    if not place or not isinstance(turn.get(place) or "", str | list):
        return None
    content, is_item = turn.get(place), place == "output"
    if isinstance(content, str) and (is_item or turn["role"] in _RESULTS) and is_json(content):
        if turn.get("role") == "function":
            return None
        return {**turn, place: parts_with_moved_text(content, span, "input_text" if is_item else "text")}
    return {**turn, place: _append_text(content, span, is_input=is_item)}


def _append_text(content: Json, span: str, *, is_input: bool = False) -> Json:
    if isinstance(content, list):
        kind = "input_text" if is_input or any(field(part, "type") == "input_text" for part in content) else "text"
        return [*content, {"type": kind, "text": span}]
    return f"{content or ''}\n\n{span}"


def _tool_sort_key(tool: JsonObject) -> str:
    name = field(tool.get("function"), "name") or tool.get("name")
    return f"{name} {dumps(tool, sort_keys=True).decode()}"
