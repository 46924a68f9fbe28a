"""Random JSON schemas, and answers that are held to them by the demonstration model.

    python -m tests.engine.schemas [COUNT] [SEED]

Every answer that ends by itself is parsed and validated.
"""

import json
import random
import sys
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import load_model
from kvproxy.errors import InvalidRequest
from kvproxy.generation import GenerationRequest, Grammar, SamplingParams
from kvproxy.settings import EngineSettings

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


def answers(engine: EngineCore, schemas: list[Schema], tokens: int = 160) -> list[tuple[str, str | None]]:
    """The answer to each schema, drawn with a seed, and how it ended; None where the schema was refused."""
    found: dict[int, list[Any]] = {}
    for number, schema in enumerate(schemas):
        params = SamplingParams(max_tokens=tokens, temperature=1.0, seed=number)
        prompt = tuple(engine.tokenizer.encode(f"Describe number {number}."))
        grammar = Grammar("json_schema", json.dumps(schema))
        try:
            engine.add_request(
                GenerationRequest(str(number), prompt, params, grammar=grammar), found.setdefault(number, []).append
            )
        except InvalidRequest as error:
            print(f"refused: {error}: {json.dumps(schema)}", file=sys.stderr)
    while engine.has_work:
        engine.step()
    return [
        ("".join(piece.text for piece in found[number]), found[number][-1].finish_reason if found[number] else None)
        for number in range(len(schemas))
    ]


def check(schema: Schema, answer: str) -> None:
    """Raise where an answer is no JSON or does not fit its schema."""
    # Python knows no year 0000, which RFC 3339 allows: dates are not checked.
    Draft202012Validator(schema, format_checker=FormatChecker(["uuid"])).validate(json.loads(answer))


def main() -> int:
    count, seed = (int(given) for given in [*sys.argv[1:], *("1000", "0")[len(sys.argv) - 1 :]])
    chance = random.Random(seed)
    engine = EngineCore(load_model("demo", "cpu"), EngineSettings(num_blocks=4000, max_num_seqs=16))
    schemas = [random_schema(chance) for _ in range(count)]
    ended = wrong = refused = 0
    for schema, (answer, how) in zip(schemas, answers(engine, schemas), strict=True):
        refused += how is None
        if how != "stop":
            continue
        ended += 1
        try:
            check(schema, answer)
        except Exception as error:
            wrong += 1
            print(f"{type(error).__name__}: {str(error).splitlines()[0]}: {answer} for {json.dumps(schema)}")
    print(f"{count} schemas: {ended} answers ended by themselves, {wrong} of them wrong; {refused} schemas refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
