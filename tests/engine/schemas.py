"""Random JSON schemas."""

import random
from typing import Any

WORDS = ("name", "city", "größe", "a b", 'quo"te', "id", "tags", "x")
Schema = dict[str, Any]


def random_schema(chance: random.Random, depth: int = 3) -> Schema:
    """A schema of the kinds that people write: objects in objects, lists, enums, limits, alternatives, references."""
    schema = _object(chance, depth)
    if chance.random() < 0.2:
        schema["$defs"] = {"node": _object(chance, 1)}
        schema["properties"]["node"] = {"$ref": "#/$defs/node"}
    return schema


def _object(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(WORDS, chance.randrange(1, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: _any(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.7],
    }
    if chance.random() < 0.8:
        schema["additionalProperties"] = False
    return schema


def _any(chance: random.Random, depth: int) -> Schema:
    kinds = [_text, _number, _choice, _plain]
    return chance.choice([*kinds, _object, _list, _either] if depth > 0 else kinds)(chance, depth)


def _text(chance: random.Random, depth: int) -> Schema:
    limit: Schema = chance.choice(
        [
            {"maxLength": 12},
            {"minLength": 2, "maxLength": 9},
            {"pattern": "^[a-z]{2,5}$"},
            {"format": "date"},
            {"format": "uuid"},
            {"pattern": "^\\d{3}-\\d{4}$"},
        ]
    )
    return {"type": "string", **limit}


def _number(chance: random.Random, depth: int) -> Schema:
    limit: Schema = chance.choice(
        [{"minimum": 3, "maximum": 2000}, {"exclusiveMinimum": -5, "maximum": 5}, {"minimum": 0, "maximum": 1}]
    )
    return {"type": chance.choice(["integer", "number"]), **limit}


def _choice(chance: random.Random, depth: int) -> Schema:
    return chance.choice([{"enum": ["red", "green", 3, None, True]}, {"const": "fixed"}, {"enum": ["ä", "日本"]}])


def _plain(chance: random.Random, depth: int) -> Schema:
    return {"type": chance.choice(["boolean", "null"])}


def _list(chance: random.Random, depth: int) -> Schema:
    least = chance.randrange(3)
    return {"type": "array", "items": _any(chance, depth - 1), "minItems": least, "maxItems": least + 2}


def _either(chance: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(chance, depth - 1), _any(chance, depth - 1)]}
