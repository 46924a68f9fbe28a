"""Values that the engine cannot compute with are refused before they meet anybody else's."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.pins import PinLimitExceeded
from kvproxy.blocks.request import CacheRequest
from kvproxy.engine.core import EngineCore
from kvproxy.engine.limits import EngineLimits, validate_sampling
from kvproxy.engine.models.loader import prepare_model
from kvproxy.errors import ContextTooLong, InvalidRequest
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.engine.models import LetterTokenizer, random_model
from tests.engine.tiered import tiny

LIMITS = EngineLimits(vocab_size=300, max_model_len=100, pool_tokens=80)


@pytest.mark.parametrize(
    ("field", "value", "takes"),
    [
        ("top_k", 10**19, "-1 to 2147483647"),
        ("top_k", -2, "integer"),
        ("top_k", 2.0, "integer"),
        ("top_k", True, "integer"),
        ("seed", 2**64, "integer"),
        ("seed", 1.5, "integer"),
        ("seed", "1", "integer"),
        ("temperature", math.nan, "number from 0 to 100"),
        ("temperature", math.inf, "number from 0 to 100"),
        ("temperature", -0.1, "number from 0 to 100"),
        ("temperature", 1e300, "number from 0 to 100"),
        ("temperature", None, "number from 0 to 100"),
        ("top_p", 1.5, "number from 0 to 1"),
        ("top_p", math.nan, "number from 0 to 1"),
        ("top_p", "0.5", "number from 0 to 1"),
        ("top_k", None, "integer"),
        ("n", 0, "1 to 128"),
        ("n", None, "1 to 128"),
        ("n", 129, "1 to 128"),
        ("logprobs", 21, "0 to 20"),
        ("logprobs", -1, "0 to 20"),
        ("prompt_logprobs", 21, "0 to 20"),
        ("max_tokens", -1, "integer from 0"),
        ("max_tokens", 1.0, "integer from 0"),
        ("stop", ("x",) * 33, "at most 32 strings"),
        ("stop", ("x" * 1025,), "at most 1024 characters"),
        ("stop", (5,), "strings"),
        ("stop", "text", "strings"),
    ],
)
def test_bad_values_are_refused_by_name(field: str, value: Any, takes: str) -> None:
    params = replace(SamplingParams(max_tokens=1), **{field: value})
    with pytest.raises(InvalidRequest, match=f"{field} must be .*{takes}") as refused:
        LIMITS.validate(GenerationRequest("r", (1,), params))
    assert refused.value.param == field


@settings(deadline=None, max_examples=25)
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
def test_what_is_accepted_can_be_computed(params: SamplingParams) -> None:
    validate_sampling(params)
    pieces: list[str | None] = []
    ENGINE.add_request(
        GenerationRequest("r", (1, 2, 3), params), lambda delta: pieces.append(delta.finish_reason), _raise
    )
    while ENGINE.has_work:
        ENGINE.step()
        if params.max_tokens is None and pieces:
            ENGINE.abort("r")
    assert params.max_tokens is None or len([reason for reason in pieces if reason]) == params.n


ENGINE = EngineCore(tiny(), EngineSettings(num_blocks=30, block_size=4))


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"priority": 1.5}, "priority must be"),
        ({"queue_priority": math.nan}, "priority must be"),
        ({"salt": "\ud800"}, "cache_salt must be"),
        ({"tokens": (1, "2")}, "vocabulary of 300"),
        ({"tokens": (1, True)}, "vocabulary of 300"),
    ],
)
def test_what_would_break_the_order_of_all_requests_is_refused(change: dict[str, Any], complaint: str) -> None:
    request = replace(GenerationRequest("r", (1,), SamplingParams(max_tokens=1)), **change)
    with pytest.raises(InvalidRequest, match=complaint):
        LIMITS.validate(request)


def test_the_smaller_of_model_and_pool_is_the_limit() -> None:
    with pytest.raises(ContextTooLong, match=r"block pool .*: 80 tokens"):
        LIMITS.validate_length(81, 0)
    with pytest.raises(ContextTooLong, match="at least 101 tokens does not fit the model: 100 tokens"):
        replace(LIMITS, pool_tokens=500).validate_length(101, 0, at_least=True)
    LIMITS.validate_length(80, 0)


def test_what_a_model_recommends_beyond_the_limits_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Else each request that leaves a value to the model would be refused for it."""
    model = random_model("llama")
    for name, value in (("temperature", 0.3), ("top_p", 1.7), ("top_k", 40)):
        setattr(model.generation_config, name, value)
    loaded = prepare_model("m", model, LetterTokenizer(), torch.device("cpu"))
    assert loaded.default_sampling_params == SamplingParams(temperature=0.3, top_k=40)
    assert "top_p = 1.7" in caplog.text


def test_pins_leave_room_for_the_longest_request() -> None:
    engine = EngineCore(tiny(), EngineSettings(num_blocks=24, block_size=4, max_model_len=32))

    def answer(id: str, prompt: list[int]) -> list[int]:
        tokens: list[int] = []
        params = SamplingParams(max_tokens=1, temperature=0.0)
        engine.add_request(GenerationRequest(id, tuple(prompt), params), lambda delta: tokens.extend(delta.tokens))
        for _ in range(100):
            engine.step()
        return tokens

    # One block of 24 is never given away, and the longest request needs 8.
    for number in range(23 - 8):
        answer(f"short {number}", [number] * 5)
        engine.pins.pin(f"pin {number}", CacheRequest("pin", [number] * 5))
    answer("one more", [100] * 5)
    with pytest.raises(PinLimitExceeded):
        engine.pins.pin("one more", CacheRequest("pin", [100] * 5))
    assert len(answer("long", list(range(31)))) == 1
