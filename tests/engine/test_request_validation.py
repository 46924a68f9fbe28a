"""Values that the engine cannot compute with are refused before they meet anybody else's."""

import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.apis.codecs.generation import GenerationRequest, SamplingParams
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.pins import PinLimitExceeded
from kvproxy.engine.request_validation import EngineLimits, validate_sampling
from kvproxy.errors import ContextTooLong, InvalidRequest
from tests.engine.driven import Driven
from tests.engine.models import load, random_model

LIMITS = EngineLimits(vocab_size=300, max_model_len=100, pool_tokens=80)


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("top_k", 10**19, "top_k must be .*-1 to 2147483647"),
        ("top_k", True, "top_k must be .*integer"),
        ("seed", 2**64, "seed must be .*integer"),
        ("seed", 1.5, "seed must be .*integer"),
        ("temperature", math.nan, "temperature must be .*number from 0 to 100"),
        ("temperature", None, "temperature must be .*number from 0 to 100"),
        ("top_p", 1.5, "top_p must be .*number from 0 to 1"),
        ("top_p", "0.5", "top_p must be .*number from 0 to 1"),
        ("n", 0, "n must be .*1 to 128"),
        ("logprobs", 21, "logprobs must be .*0 to 20"),
        ("max_tokens", -1, "max_tokens must be .*integer from 0"),
        ("max_tokens", 1.0, "max_tokens must be .*integer from 0"),
        ("stop", ("x",) * 33, "stop must be .*at most 32 strings"),
        ("stop", ("x" * 1025,), "stop must be .*at most 1024 characters"),
        ("stop", "text", "stop must be .*strings"),
        ("priority", 1.5, "priority must be"),
        ("queue_priority", math.nan, "priority must be"),
        ("queue_priority", True, "priority must be"),
        ("salt", "\ud800", "cache_salt must be"),
        ("tokens", (), "no tokens"),
        ("tokens", (1, "2"), "vocabulary of 300"),
        ("tokens", (1, True), "vocabulary of 300"),
        ("tokens", (1, 300), "vocabulary of 300"),
        ("tokens", (-1, 1), "vocabulary of 300"),
    ],
)
def test_bad_values_are_refused_by_name(field: str, value: Any, complaint: str) -> None:
    request = GenerationRequest("r", (1,), SamplingParams(max_tokens=1))
    if hasattr(request, field):
        request = replace(request, **{field: value})
    else:
        request = replace(request, sampling=replace(request.sampling, **{field: value}))
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        LIMITS.validate(request)
    assert refused.value.param is None or complaint.startswith(refused.value.param)


def test_the_default_of_max_tokens_is_the_models_and_fits_the_pool() -> None:
    limits = replace(LIMITS, default_max_tokens=50)
    asked = [(1, None), (60, None), (1, 79), (1, 0)]
    found = [
        limits.validate(GenerationRequest("r", (1,) * prompt, SamplingParams(max_tokens=most)))
        for prompt, most in asked
    ]
    assert found == [50, 20, 79, 0]
    model = random_model("llama")
    assert load(model).default_max_tokens is None
    model.generation_config.max_new_tokens = 7
    assert load(model).default_max_tokens == 7
    assert Driven(loaded=load(model)).engine.limits.default_max_tokens == 7


@pytest.fixture(scope="module")
def driven() -> Driven:
    return Driven(num_blocks=30)


@settings(deadline=None, max_examples=15)
@given(
    st.builds(
        SamplingParams,
        max_tokens=st.none() | st.integers(0, 3),
        temperature=st.integers(0, 2) | st.floats(0, 100) | st.sampled_from([5e-324, 1e-30, 1e-5]),
        top_p=st.floats(0, 1),
        top_k=st.integers(-1, 2**31 - 1),
        seed=st.none() | st.integers(-(2**63), 2**64 - 1),
        stop=st.lists(st.text(max_size=3), max_size=3).map(tuple),
        logprobs=st.none() | st.integers(0, 20),
        n=st.integers(1, 2),
    )
)
def test_what_is_accepted_can_be_computed(driven: Driven, params: SamplingParams) -> None:
    validate_sampling(params)
    driven.done.clear()
    driven.submit("r", (1, 2, 3), **asdict(params))
    while driven.engine.has_work:
        driven.step()
        if params.max_tokens is None and driven.pieces["r"]:
            driven.engine.abort("r")
    assert driven.errors["r"] == []
    assert params.max_tokens is None or len(driven.done) == params.n


@pytest.mark.parametrize(
    ("length", "most", "result"),
    [
        (10, None, 70),
        (79, None, 1),
        (10, 70, 70),
        (80, 0, 0),
        (80, None, r"of 80 tokens does not fit the block pool .*: 80 tokens"),
        (10, 71, r"10 tokens and max_tokens 71"),
        (81, 0, "81 tokens does"),
    ],
)
def test_how_many_tokens_a_request_may_get(length: int, most: int | None, result: int | str) -> None:
    request = GenerationRequest("r", (299,) * length, SamplingParams(max_tokens=most))
    if isinstance(result, int):
        assert LIMITS.validate(request) == result
    else:
        with pytest.raises(ContextTooLong, match=result):
            LIMITS.validate(request)


def test_the_models_limit_is_named_if_it_is_the_smaller() -> None:
    with pytest.raises(ContextTooLong, match="at least 101 tokens does not fit the model: 100 tokens"):
        replace(LIMITS, pool_tokens=500).validate_length(101, 0, is_minimum=True)


def test_a_prompt_alone_may_fill_the_pool() -> None:
    driven = Driven(num_blocks=11)
    driven.submit("r", (1, 2, 3, 4) * 10, 0, n=3, prompt_logprobs=1)
    driven.run()
    pieces = driven.pieces["r"]
    told = [(piece.index, piece.tokens, piece.finish_reason) for piece in pieces]
    assert told == [(n, (), "length") for n in range(3)]
    assert [len(piece.prompt_logprobs) for piece in pieces] == [39, 0, 0]
    assert driven.engine.manager.stats().used == 0
    assert driven.engine.manager.stats().cached == 10


def test_what_a_model_recommends_beyond_the_limits_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    model = random_model("llama")
    for name, value in (("temperature", 0.3), ("top_p", 1.7), ("top_k", 40)):
        setattr(model.generation_config, name, value)
    assert load(model).default_sampling_params == SamplingParams(temperature=0.3, top_k=40)
    assert "top_p = 1.7" in caplog.text


def test_the_pool_size_that_a_refused_pin_names_suffices() -> None:
    """The pool is smaller than the model's longest sequence (32 blocks), which a larger pool must hold beside the pins."""

    def missing_blocks(num_blocks: int) -> int:
        engine = Driven(num_blocks=num_blocks, max_model_len=128).engine
        prompt = CacheRequest("prompt", range(41))
        engine.manager.allocate_slots(prompt, 41, engine.manager.get_computed_blocks(prompt))
        engine.manager.free(prompt)
        try:
            assert engine.pins.pin("pin", CacheRequest("pin", range(41))) == 40
        except PinLimitExceeded as error:
            return error.missing
        return 0

    needed = 20 + missing_blocks(20)
    assert needed == 1 + 32 + 10
    assert missing_blocks(needed) == 0
    assert missing_blocks(needed - 1) == 1
