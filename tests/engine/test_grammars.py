"""Answers that follow a schema, drawn by the demonstration model."""

import random

import pytest

from kvproxy.engine.core import EngineCore
from kvproxy.engine.models.loader import load_model
from kvproxy.engine.sampler.structured_output import allowed_tokens
from kvproxy.errors import InvalidRequest
from kvproxy.generation import Delta, GenerationRequest, Grammar, SamplingParams
from kvproxy.settings import EngineSettings
from tests.engine.schemas import answers, check, random_schema


@pytest.fixture(scope="module")
def engine() -> EngineCore:
    return EngineCore(
        load_model("demo", "cpu"), EngineSettings(num_blocks=1500, max_num_seqs=16, num_speculative_tokens=3)
    )


def test_answers_to_random_schemas_validate(engine: EngineCore) -> None:
    chance = random.Random(7)
    schemas = [random_schema(chance, depth=2) for _ in range(16)]
    found = answers(engine, schemas, tokens=100)
    ended = [(schema, text) for schema, (text, how) in zip(schemas, found, strict=True) if how == "stop"]
    assert len(ended) >= 8
    for schema, text in ended:
        check(schema, text)
    assert engine.manager.stats().used == 0


def test_a_schema_holds_for_each_of_several_answers_and_not_for_those_beside_it(engine: EngineCore) -> None:
    heard: dict[str, dict[int, str]] = {"held": {}, "free": {}}

    def ask(name: str, params: SamplingParams, grammar: Grammar | None) -> None:
        def take(piece: Delta) -> None:
            heard[name][piece.index] = heard[name].get(piece.index, "") + piece.text

        tokens = tuple(engine.tokenizer.encode("Which colour?"))
        engine.add_request(GenerationRequest(name, tokens, params, grammar=grammar), take)

    colours = Grammar("json_schema", '{"enum": ["red", "blue", "green"]}')
    ask("held", SamplingParams(max_tokens=9, seed=1, n=6, ignore_eos=True, logprobs=2), colours)
    ask("free", SamplingParams(max_tokens=9, temperature=0.0), None)
    while engine.has_work:
        engine.step()
    assert set(heard["held"].values()) <= {'"red"', '"blue"', '"green"'}
    assert len(set(heard["held"].values())) > 1
    assert heard["free"][0] not in heard["held"].values()


@pytest.mark.parametrize("text", ['{"type": "strange"}', '{"$ref": "#/nowhere"}', '{"type": "string", "pattern": "("}'])
def test_a_schema_that_cannot_be_followed_is_refused(engine: EngineCore, text: str) -> None:
    request = GenerationRequest("x", (1, 2), SamplingParams(), grammar=Grammar("json_schema", text))
    with pytest.raises(InvalidRequest, match="the schema is not supported"):
        engine.add_request(request, lambda piece: None)
    assert not engine.has_work


def test_a_row_without_a_grammar_may_have_any_token() -> None:
    for vocabulary in (1, 32, 70):
        mask = allowed_tokens([None, None], vocabulary)
        assert mask.shape == (2, vocabulary)
        assert mask.all()
