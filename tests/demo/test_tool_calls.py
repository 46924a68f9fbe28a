"""Arguments of the demonstration model's calls are valid under the JSON schema of the tool, or refused."""

import json
from typing import Any

import jsonschema
import pytest

from kvproxy.apis.codecs.codec import ToolUse
from kvproxy.demo.tool_calls import required_call
from kvproxy.errors import InvalidRequest

ASK: Any = [{"role": "user", "content": "Hi"}]
PLACE = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x"]}


def arguments(property_schema: object, **more: Any) -> Any:
    schema: Any = {"type": "object", "properties": {"a": property_schema}, "required": ["a"], **more}
    call = required_call(ToolUse({"f": schema}, required=True), ASK)
    assert call is not None
    value = json.loads(call.arguments)
    jsonschema.validate(value, schema)
    return value["a"]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "minLength": 6}, "demode"),
        ({"type": "string", "maxLength": 2}, "de"),
        ({"type": "integer", "exclusiveMinimum": 3}, 4),
        ({"type": "integer", "maximum": -2.5}, -3),
        ({"type": "number", "minimum": 0.2, "exclusiveMaximum": 0.4}, pytest.approx(0.3)),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"type": ["null", "string"]}, None),
        ({"enum": ["red", "blue"]}, "red"),
        ({"const": 5}, 5),
        ({"type": "string", "format": "date", "default": "2026-11-30"}, "2026-11-30"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 0),
        ({"$ref": "#/$defs/place"}, {"x": 0}),
        ({"allOf": [{"$ref": "#/$defs/place"}]}, {"x": 0}),
        (True, "demo"),
    ],
)
def test_arguments_are_valid(schema: object, value: object) -> None:
    assert arguments(schema, **{"$defs": {"place": PLACE}}) == value


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "string", "pattern": "^x$"}, "tool f.a with pattern"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum and maximum"),
        ({"type": "array", "items": {}, "minItems": 10**9}, "minItems"),
        ({"$ref": "#/properties/a"}, "too deeply"),
    ],
)
def test_unknown_arguments_are_refused(schema: object, part: str) -> None:
    with pytest.raises(InvalidRequest, match=part):
        arguments(schema)


def test_no_call_is_made_unless_it_is_required_after_a_question() -> None:
    tools = {"f": {"type": "object"}}
    assert required_call(None, ASK) is required_call(ToolUse(tools, required=False), ASK) is None
    assert required_call(ToolUse(tools, required=True), [*ASK, {"role": "tool", "content": "3"}]) is None
