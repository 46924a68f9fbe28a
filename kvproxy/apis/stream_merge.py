"""Merges the chunks of a stream into one object, by rules that need few names of fields.

A delta has parts of values: strings are concatenated, except fields that are set once, such as ids; objects are merged by key,
and lists by the `index` or the `id` of their items. All other fields have whole values, of which the last one counts.
Parts of content, such as texts and thoughts, continue the last part of their type.
Values that contradict each other, or whose meaning is ambiguous, raise Unmergeable.
"""

from collections.abc import Callable

from kvproxy.apis.json import Json, JsonObject, as_object, field, objects
from kvproxy.apis.not_stored import Unmergeable

# Set once. A server may repeat the value in each delta.
_IDENTIFIERS = frozenset(
    "id call_id tool_call_id item_id object model type role format status phase signature encrypted_content"
    " media_type mime_type encoding language voice title url file_id filename finish_reason reason service_tier severity"
    " channel".split()
)
# Set once. A server may repeat the value, or send a longer one that begins with it.
_NAMES = frozenset(("name",))
# Text that arrives in parts.
_TEXTS = frozenset(
    "content text refusal reasoning reasoning_content reasoning_text thinking transcript data summary arguments input"
    " code output".split()
)
_JSON_TEXTS = frozenset(("arguments", "input"))
# Calls whose JSON clients concatenate; calls of the server's own tools are repeated with their results.
_CALLS = ("tool_calls", "function_call")
# Lists of parts without an index: a part continues the last one of its type until this one has a mark of its end.
_PART_LISTS = frozenset(("content", "thinking", "summary", "thinking_blocks"))
_CONTINUED_PARTS = ("text", "thinking", "reasoning", "summary_text")
_PART_ENDS = ("signature", "closed")
# Lists of whole items. A chunk has further items, and repeats no item.
_ITEM_LISTS = frozenset(("annotations",))
# Lists to which each chunk appends.
_APPENDED = frozenset(("token_ids",))
# Whole values that a later chunk may replace by others.
_REPLACED = frozenset(("system_fingerprint", "service_tier"))

_Merge = Callable[[Json, Json, str, str], Json]


def merge_delta(merged: JsonObject, delta: JsonObject, path: str = "") -> None:
    """Add the parts of values in a delta to an object. Raises Unmergeable."""
    _merge_objects(merged, delta, path, _merge_part)


def merge_whole_values(merged: JsonObject, later: JsonObject, path: str = "") -> None:
    """Add the whole values of a later chunk to an object. Raises Unmergeable."""
    _merge_objects(merged, later, path, _merge_whole)


def append_lists(merged: JsonObject, later: JsonObject, path: str) -> None:
    """Append the lists of an object, such as log-probabilities; merge other fields as whole values. Raises Unmergeable."""
    for name, value in later.items():
        before = merged.get(name)
        if isinstance(before, list) and isinstance(value, list):
            merged[name] = [*before, *value]
        else:
            _merge_objects(merged, {name: value}, path, _merge_whole)


def _merge_objects(merged: JsonObject, later: JsonObject, path: str, merge: _Merge) -> None:
    for name, value in later.items():
        where = f"{path}.{name}" if path else name
        before = merged.get(name)
        # A null never replaces a value.
        if value is None:
            merged.setdefault(name, None)
        elif before is None:
            merged[name] = _without_fragments(value, where, merge)
        else:
            merged[name] = _merge_values(before, value, name, where, merge)


def _without_fragments(value: Json, path: str, merge: _Merge) -> Json:
    # One chunk may have several parts of an item.
    if isinstance(value, list) and (key := _item_key(value)) is not None:
        return _merge_items([], value, key, path, merge)
    if merge is _merge_part and isinstance(value, list) and path.rpartition(".")[2] in _PART_LISTS:
        return merge_parts([], value, path)
    return value


def _merge_values(before: Json, value: Json, name: str, path: str, merge: _Merge) -> Json:
    if isinstance(before, dict) and isinstance(value, dict):
        _merge_objects(before, value, path, merge)
        return before
    if _is_number(before) and _is_number(value):
        return value
    if isinstance(before, list) and isinstance(value, list):
        if name in _APPENDED:
            return [*before, *value]
        if not before or not value:
            return before or _without_fragments(value, path, merge)
        key = _item_key([*before, *value])
        if key is not None:
            return _merge_items(before, value, key, path, merge)
        if merge is _merge_part and name in _PART_LISTS:
            return merge_parts(before, value, path)
        if merge is _merge_part and name in _ITEM_LISTS and not any(item in before for item in value):
            return [*before, *value]
    return merge(before, value, name, path)


def merge_parts(before: list[Json], parts: list[Json], path: str) -> list[Json]:
    """Return a list of parts with further parts, of which some continue the last one. Raises Unmergeable."""
    merged = list(before)
    for part in parts:
        if not isinstance(part, dict) or not part.get("type"):
            raise Unmergeable(path)
        last = merged[-1] if merged else None
        if isinstance(last, dict) and _continues(last, part):
            _merge_objects(last, part, path, _merge_part)
        else:
            merged.append({})
            _merge_objects(as_object(merged[-1]), part, path, _merge_part)
    return merged


def _continues(last: JsonObject, part: JsonObject) -> bool:
    kind = part.get("type")
    return kind == last.get("type") and kind in _CONTINUED_PARTS and not any(last.get(name) for name in _PART_ENDS)


def _merge_part(before: Json, value: Json, name: str, path: str) -> Json:
    if not before or not value:
        return before or value
    if not isinstance(before, str) or not isinstance(value, str):
        raise Unmergeable(path)
    if name in _IDENTIFIERS or name in _NAMES:
        return _merge_set_once(before, value, name, path)
    repeats = value.startswith(before)
    if value == before and name in _JSON_TEXTS and before[0] + before[-1] == "{}" and not path.startswith(_CALLS):
        return before
    # A repeated object would give invalid JSON. Of an unknown field, a repeated value may be the same value or more text.
    if repeats and (name not in _TEXTS or (name in _JSON_TEXTS and before.startswith("{"))):
        raise Unmergeable(path)
    return before + value


def _merge_set_once(before: str, value: str, name: str, path: str) -> str:
    longer, shorter = (value, before) if len(value) > len(before) else (before, value)
    if longer == shorter or (name in _NAMES and longer.startswith(shorter)):
        return longer
    raise Unmergeable(path)


def _merge_whole(before: Json, value: Json, name: str, path: str) -> Json:
    if before == value or not value:
        return before
    if not before or name in _REPLACED:
        return value
    if isinstance(before, str) and isinstance(value, str) and name not in _IDENTIFIERS:
        if value.startswith(before):
            return value
    elif isinstance(before, list) and isinstance(value, list) and value[: len(before)] == before:
        return value
    raise Unmergeable(path)


def _item_key(items: list[Json]) -> str | None:
    """Return the field that identifies the items of a list; None without such a field."""
    if not items:
        return None
    if all(type(field(item, "index")) is int for item in items):
        return "index"
    return "id" if all(isinstance(id := field(item, "id"), str) and id for item in items) else None


def _merge_items(before: list[Json], items: list[Json], key: str, path: str, merge: _Merge) -> list[Json]:
    merged: dict[int | str, JsonObject] = {}
    for item in (*objects(before), *objects(items)):
        identity = item[key]
        assert isinstance(identity, int | str)
        _merge_objects(merged.setdefault(identity, {}), item, path, merge)
    if key == "index":
        return [item for _, item in sorted(merged.items(), key=lambda pair: int(pair[0]))]
    return list(merged.values())


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float)
