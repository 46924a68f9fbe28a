"""Calls of tools by the demonstration model: a required tool, with the simplest arguments that its JSON schema accepts."""

import math
import operator
from collections.abc import Callable, Sequence

from kvproxy.apis.codecs.codec import ToolUse
from kvproxy.apis.codecs.generation import ToolCall
from kvproxy.apis.json import Json, JsonObject, as_object, dumps, field, objects
from kvproxy.errors import InvalidRequest

_EXAMPLE = "demo"
_MAX_DEPTH = 20
_MOST = 1_000  # Items and characters.
_UNSUPPORTED = tuple("allOf pattern format multipleOf uniqueItems contains prefixItems not if minProperties".split())
_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}


def required_call(tools: ToolUse | None, messages: Sequence[JsonObject]) -> ToolCall | None:
    """Return the call of the first required tool; None if no tool is required, or if the last message is no user's.

    Raises InvalidRequest if the arguments are unknown.
    """
    if tools is None or not tools.required or messages[-1].get("role") != "user":
        return None
    name, schema = next(iter(tools.schemas.items()))
    return ToolCall(name, dumps(_example(schema, schema, f"tool {name}", _MAX_DEPTH)).decode())


def _example(schema: Json, root: JsonObject, path: str, depth: int) -> Json:
    if not isinstance(schema, dict):
        return _EXAMPLE
    if depth == 0:
        raise InvalidRequest(f"the demonstration model cannot fill {path}, which is nested too deeply")
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    for name in ("enum", "examples"):
        if isinstance(values := schema.get(name), list) and values:
            return values[0]
    if isinstance(reference := schema.get("$ref"), str):
        return _example(_referenced(root, reference), root, path, depth - 1)
    for name in ("anyOf", "oneOf", "allOf"):
        choices = objects(schema.get(name))
        if choices and (name != "allOf" or len(choices) == 1):
            rest = {key: value for key, value in schema.items() if key != name}
            return _example({**rest, **choices[0]}, root, path, depth - 1)
    if unsupported := [name for name in _UNSUPPORTED if name in schema]:
        raise _unknown(path, unsupported[0])
    return _value(schema, root, path, depth)


def _unknown(path: str, keyword: str) -> InvalidRequest:
    return InvalidRequest(
        f"the demonstration model finds no value for {path} with {keyword}: give it a default, or serve another model"
    )


def _value(schema: JsonObject, root: JsonObject, path: str, depth: int) -> Json:
    kinds = schema.get("type")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    if kind == "object" or (kind is None and "properties" in schema):
        required, properties = schema.get("required"), as_object(schema.get("properties") or {})
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        return {name: _example(properties.get(name), root, f"{path}.{name}", depth - 1) for name in names}
    if kind == "array":
        items = schema.get("items")
        return [_example(items, root, f"{path}[]", depth - 1) for _ in range(_count(schema, "minItems", path))]
    if kind in ("integer", "number"):
        return _number(schema, path, is_integer=kind == "integer")
    if kind in ("boolean", "null"):
        return False if kind == "boolean" else None
    length = max(len(_EXAMPLE), _count(schema, "minLength", path))
    most = schema.get("maxLength")
    return (_EXAMPLE * (length // len(_EXAMPLE) + 1))[: min(length, most) if isinstance(most, int) else length]


def _count(schema: JsonObject, name: str, path: str) -> int:
    count = schema.get(name, 0)
    if not isinstance(count, int) or count > _MOST:
        raise _unknown(path, name)
    return count


def _number(schema: JsonObject, path: str, *, is_integer: bool) -> float:
    bounds = {name: bound for name in _BOUNDS if isinstance(bound := schema.get(name), int | float)}
    near = [math.floor(bound) + step for bound in bounds.values() for step in (0, 1, -1)]
    middle = [] if is_integer or not bounds else [sum(bounds.values()) / len(bounds)]
    for value in (0, *near, *middle):
        if all(_BOUNDS[name](value, bound) for name, bound in bounds.items()):
            return value
    raise _unknown(path, " and ".join(bounds))


def _referenced(root: JsonObject, reference: str) -> Json:
    found: Json = root
    for name in reference.removeprefix("#").split("/")[1:]:
        found = field(found, name.replace("~1", "/").replace("~0", "~"))
    return found
