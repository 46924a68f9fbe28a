"""Answers that follow a schema, drawn by the demonstration model."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from kvproxy.apis.codecs.generation import Grammar
from kvproxy.engine.models.loader import load_model
from kvproxy.engine.structured_output import allowed_tokens
from kvproxy.errors import InvalidRequest
from tests.engine.driven import Driven

TEXTS = (
    {"maxLength": 12},
    {"minLength": 2, "maxLength": 9},
    {"pattern": "^[a-z]{2,5}$"},
    {"pattern": "^\\d{3}-\\d{4}$"},
    {"format": "date"},
    {"format": "uuid"},
)
NUMBERS = ({"minimum": 3, "maximum": 2000}, {"exclusiveMinimum": -5, "maximum": 5}, {"minimum": 0, "maximum": 1})
VALUES: list[dict[str, Any]] = [
    *({"type": "string", **limit} for limit in TEXTS),
    *({"type": kind, **limit} for kind in ("integer", "number") for limit in NUMBERS),
    {"enum": ["red", "green", 3, None, True]},
    {"enum": ["ä", "日本"]},
    {"const": "fixed"},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"type": "boolean"}, {"const": "fixed"}]},
    {"$ref": "#/$defs/node"},
]
# Python knows no year 0000, which RFC 3339 allows: dates are not checked.
FORMATS = FormatChecker(["uuid"])


@pytest.fixture(scope="module")
def driven() -> Driven:
    sizes = {"num_blocks": 1500, "block_size": 16, "max_num_seqs": 16, "max_num_batched_tokens": 512}
    return Driven(load_model("demo", "cpu"), num_speculative_tokens=3, **sizes)


def text_of(driven: Driven, id: str, index: int = 0) -> str:
    return "".join(piece.text for piece in driven.pieces[id] if piece.index == index)


def test_answers_validate(driven: Driven) -> None:
    node = {"type": "object", "properties": {"größe": {"enum": [1, 2]}}, "additionalProperties": False}
    schemas = [
        {
            "type": "object",
            "properties": {'quo"te': value, "optional": {"type": "boolean"}},
            "required": ['quo"te', *["optional"] * (number % 2)],
            "additionalProperties": False,
            "$defs": {"node": node},
        }
        for number, value in enumerate(VALUES)
    ]
    for number, schema in enumerate(schemas):
        prompt = driven.engine.tokenizer.encode(f"Describe number {number}.")
        grammar = Grammar("json_schema", json.dumps(schema))
        driven.submit(str(number), prompt, 100, temperature=1.0, seed=number, grammar=grammar)
    driven.run()
    ended = [number for number in range(len(schemas)) if driven.pieces[str(number)][-1].finish_reason == "stop"]
    assert len(ended) >= len(schemas) / 2
    for number in ended:
        answer = json.loads(text_of(driven, str(number)))
        Draft202012Validator(schemas[number], format_checker=FORMATS).validate(answer)
    assert driven.engine.manager.stats().used == 0


def test_a_schema_holds_for_each_of_several_answers_and_not_for_those_beside_it(driven: Driven) -> None:
    prompt = driven.engine.tokenizer.encode("Which colour?")
    colours = Grammar("json_schema", '{"enum": ["red", "blue", "green"]}')
    sampling = {"temperature": 1.0, "seed": 1, "n": 6, "ignore_eos": True, "logprobs": 2}
    driven.submit("held", prompt, 9, grammar=colours, **sampling)
    driven.submit("free", prompt, 9)
    driven.run()
    held = {text_of(driven, "held", index) for index in range(6)}
    assert held <= {'"red"', '"blue"', '"green"'}
    assert len(held) > 1
    assert text_of(driven, "free") not in held


@pytest.mark.parametrize("text", ['{"type": "strange"}', '{"$ref": "#/nowhere"}', '{"type": "string", "pattern": "("}'])
def test_a_schema_that_cannot_be_followed_is_refused(driven: Driven, text: str) -> None:
    with pytest.raises(InvalidRequest, match="the schema is not supported"):
        driven.submit("x", (1, 2), grammar=Grammar("json_schema", text))
    assert not driven.engine.has_work


def test_a_row_without_a_grammar_may_have_any_token() -> None:
    for vocabulary in (1, 32, 70):
        mask = allowed_tokens([None, None], vocabulary)
        assert mask.shape == (2, vocabulary)
        assert mask.all()
