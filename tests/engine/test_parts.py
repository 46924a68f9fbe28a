"""The engine's parts on their own: text, sampling, refusals, and what happens when a step fails."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Phi3Config, Phi3ForCausalLM

from kvproxy.engine import attention
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.core import EngineCore
from kvproxy.engine.models import loader
from kvproxy.engine.models.loader import load_model, prepare_model
from kvproxy.engine.sampler.sampler import UniformStream, sample
from kvproxy.engine.text.detokenizer import Detokenizer
from kvproxy.errors import ContextTooLong, InvalidRequest, ModelUnsupported
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.engine.models import VOCABULARY, LetterTokenizer, random_model


def decode_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


@given(st.text(max_size=30))
def test_text_arrives_whole_whatever_its_bytes(text: str) -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.push(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.finish() == text


def test_without_stop_strings_no_letter_waits_for_the_next() -> None:
    detokenizer = Detokenizer(decode_bytes)
    assert [detokenizer.push(byte) for byte in "aé".encode()] == ["a", "", "é"]
    assert detokenizer.finish() == ""


@given(st.text("ab", max_size=30), st.text("ab", min_size=1, max_size=4))
def test_nothing_of_a_stop_string_is_sent(text: str, stop: str) -> None:
    detokenizer = Detokenizer(decode_bytes, [stop])
    sent = ""
    for byte in text.encode():
        sent += detokenizer.push(byte)
        if detokenizer.stopped:
            break
    assert sent + detokenizer.finish() == text.split(stop)[0]


def test_top_k_and_top_p_keep_to_the_likely() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    likeliest = (
        SamplingParams(top_k=1),
        SamplingParams(top_p=0.1),
        SamplingParams(top_p=0.0),
        SamplingParams(temperature=0.0),
    )
    for params in likeliest:
        assert {sample(logits, [params], UniformStream(params, 0).peek(1))[0].token for _ in range(20)} == {3}
    params = SamplingParams(top_k=2, seed=1)
    points = UniformStream(params, 0).peek(100)
    assert {sample(logits, [params], [point])[0].token for point in points} == {2, 3}


def test_logprobs_are_those_of_the_model() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    params = SamplingParams(temperature=0.0, logprobs=2)
    (drawn,) = sample(logits, [params], UniformStream(params, 0).peek(1))
    expected = logits.log_softmax(-1)[0]
    assert drawn.logprob == pytest.approx(float(expected[3]))
    assert [token for token, _ in drawn.top] == [3, 2]


def tiny(**settings: Any) -> EngineCore:
    attention.register()
    loaded = prepare_model("llama", random_model("llama"), LetterTokenizer(), torch.device("cpu"))
    return EngineCore(loaded, EngineSettings(**({"num_blocks": 11, "block_size": 4} | settings)))


@pytest.mark.parametrize(
    ("prompt", "answer", "complaint"),
    [
        (0, 1, "no tokens"),
        (41, 1, "block pool"),
        (41, 0, "block pool"),
        (30, 11, "max_tokens 11"),
        (40, None, "40 tokens"),
    ],
)
def test_what_can_never_fit_is_refused(prompt: int, answer: int | None, complaint: str) -> None:
    request = GenerationRequest("r", (1,) * prompt, SamplingParams(max_tokens=answer))
    with pytest.raises((ContextTooLong, InvalidRequest), match=complaint):
        tiny().limits.validate(request)


def test_tokens_that_the_model_does_not_know_are_refused() -> None:
    for tokens in ((1, VOCABULARY), (-1, 1)):
        with pytest.raises(InvalidRequest, match="vocabulary of 300"):
            tiny().limits.validate(GenerationRequest("r", tokens, SamplingParams(max_tokens=1)))


def test_a_prompt_alone_may_fill_the_pool() -> None:
    engine, pieces = tiny(), []
    params = SamplingParams(max_tokens=0, n=3, prompt_logprobs=1)
    engine.add_request(GenerationRequest("r", (1, 2, 3, 4) * 10, params), pieces.append)
    while engine.has_work:
        engine.step()
    assert [(piece.index, piece.tokens, piece.finish_reason) for piece in pieces] == [
        (n, (), "length") for n in range(3)
    ]
    assert [len(piece.prompt_logprobs) for piece in pieces] == [39, 0, 0]
    assert engine.manager.stats().used == 0
    assert engine.manager.stats().cached == 10


def test_models_that_cannot_share_blocks_are_refused_with_the_reason() -> None:
    shape = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    attention.register()
    scaled = Phi3Config(
        num_key_value_heads=2,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 8,
            "long_factor": [1.0] * 8,
            "original_max_position_embeddings": 20,
        },
        **shape,
    )
    both_ways = Gemma3TextConfig(num_key_value_heads=2, head_dim=16, use_bidirectional_attention=True, **shape)
    for model, reason in (
        (Phi3ForCausalLM(scaled), "longrope rotary embedding depends on the length"),
        (Gemma3ForCausalLM(both_ways), "its tokens attend to later ones"),
    ):
        with pytest.raises(ModelUnsupported, match=reason):
            prepare_model("m", model, LetterTokenizer(), torch.device("cpu"))
    with pytest.raises(ModelUnsupported, match="no such folder"):
        load_model("nobody/no-such-model")


async def test_closing_the_iterator_frees_the_blocks() -> None:
    attention.register()
    loaded = prepare_model("llama", random_model("llama"), LetterTokenizer(), torch.device("cpu"))
    worker = AsyncLLM(loaded, EngineSettings(num_blocks=100, block_size=4))
    await worker.start()
    request = GenerationRequest("a", tuple(range(10)), SamplingParams(max_tokens=300, temperature=0.0))
    pieces = worker.generate(request)
    await anext(pieces)
    assert (await worker.inspect(lambda manager: manager.stats())).used > 0
    await pieces.aclose()  # type: ignore[attr-defined]
    for _ in range(100):
        if (await worker.inspect(lambda manager: manager.stats())).used == 0:
            break
        await asyncio.sleep(0.01)
    assert (await worker.inspect(lambda manager: manager.stats())).used == 0
    await worker.stop()


@pytest.mark.parametrize(
    ("width", "supported", "dtype"), [(64, True, "float32"), (11_000, True, "bfloat16"), (11_000, False, "float32")]
)
def test_large_models_are_in_bfloat16_if_the_processor_supports_it(
    width: int, supported: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    model = torch.nn.Linear(width, width, device="meta")
    assert loader._fastest_dtype(model, torch.device("cpu")) == getattr(torch, dtype)
    assert loader._fastest_dtype(model, torch.device("cuda")) == torch.bfloat16
