"""Small rules of the engine, one by one: bounds of requests, division into pieces, whose turn it is, and when it fails."""

import asyncio
import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvproxy.blocks.request import CacheRequest
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.health import FAILURE_THRESHOLD, EngineHealth, client_error, first_line
from kvproxy.engine.limits import EngineLimits, validate_sampling
from kvproxy.engine.models.layer_groups import group_layers, layer_kinds, pool_slots
from kvproxy.engine.sampler.sampler import UniformStream
from kvproxy.engine.scheduler.chunked_prefill import ChunkedPrefill
from kvproxy.engine.scheduler.output import TokenSpan
from kvproxy.engine.scheduler.request_queue import RequestQueue
from kvproxy.engine.scheduler.sequence import NgramProposer
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.errors import ContextTooLong, InvalidRequest, SettingsError
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings, TierSettings
from tests.engine.tiered import Driven, tiny

LIMITS = EngineLimits(vocab_size=300, max_model_len=100, pool_tokens=80)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_tokens", (0, 2**53, None)),
        ("top_k", (-1, 2**31 - 1)),
        ("seed", (-(2**63), 2**64 - 1, None)),
        ("logprobs", (0, 20, None)),
        ("prompt_logprobs", (0, 20, None)),
        ("n", (1, 128)),
        ("temperature", (0, 100, 0.0, 100.0)),
        ("top_p", (0, 1, 1.0)),
        ("stop", ((), ("x" * 1024,) * 32)),
    ],
)
def test_values_at_their_bounds_are_taken(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        validate_sampling(replace(SamplingParams(), **{name: value}))


@pytest.mark.parametrize("name", ["top_k", "n"])
def test_what_has_a_value_always_may_not_be_left_out(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        validate_sampling(replace(SamplingParams(), **{name: None}))


def request(length: int, most: int | None, **fields: Any) -> GenerationRequest:
    return GenerationRequest("r", (299,) * length, SamplingParams(max_tokens=most), **fields)


def test_how_many_tokens_a_request_may_get() -> None:
    assert LIMITS.validate(request(10, None)) == 70
    assert LIMITS.validate(request(79, None)) == 1
    assert LIMITS.validate(request(10, 70)) == 70
    assert LIMITS.validate(request(80, 0)) == 0
    for length, most, said in (
        (80, None, r"of 80 tokens does"),
        (10, 71, r"10 tokens and max_tokens 71"),
        (81, 0, "81 tokens does"),
    ):
        with pytest.raises(ContextTooLong, match=said):
            LIMITS.validate(request(length, most))
    with pytest.raises(InvalidRequest, match="priority"):
        LIMITS.validate(request(1, 1, queue_priority=True))


def test_who_draws_with_a_seed_draws_the_same_in_every_version() -> None:
    for seed, index, used in ((5, 0, 5), (5, 2, 5 + 2 * 0x9E3779B9), (2**63 + 7, 0, 7), (-1, 0, 2**63 - 1)):
        generator = torch.Generator().manual_seed(used)
        expected = [torch.rand((), generator=generator, dtype=torch.float64).item() for _ in range(3)]
        assert UniformStream(SamplingParams(seed=seed), index).peek(3) == expected
    assert UniformStream(SamplingParams(), 0).peek(1) != UniformStream(SamplingParams(), 0).peek(1)


def test_guesses_need_three_equal_tokens() -> None:
    assert NgramProposer().propose([1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]
    assert NgramProposer().propose([1, 2, 3, 4, 9, 2, 3], 2) == []
    assert NgramProposer().propose([1, 2], 2) == []


def test_almost_no_temperature_is_none() -> None:
    assert SamplingParams(temperature=9e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy


@dataclass
class Sequence:
    """What a line and pieces look at."""

    request: GenerationRequest
    cache_request: CacheRequest
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    names: list[str] = field(default_factory=list)


def sequence(id: str, tenant: str = "", *, rank: int = 0, own: int = 0, tokens: int = 0, prompt: int = 0) -> Any:
    source = GenerationRequest(id, (), SamplingParams(), tenant=tenant, queue_priority=rank, own_priority=own)
    return Sequence(source, CacheRequest(id, [1] * tokens), prompt)


def test_strict_pieces_begin_and_end_at_multiples() -> None:
    ordinary, strict = ChunkedPrefill(16, 100, strict=False), ChunkedPrefill(16, 100, strict=True)
    assert (ordinary.is_strict, ordinary.alignment, ordinary.max_step_tokens) == (False, 16, 100)
    assert (strict.is_strict, strict.alignment, strict.max_step_tokens) == (True, 96, 100)
    assert ChunkedPrefill(16, 10, strict=True).max_step_tokens == 16
    strict = ChunkedPrefill(16, 64, strict=True)
    one = sequence("a", tokens=210, prompt=200)
    assert [ordinary.num_new_tokens(one, start, 100) for start in (0, 150, 205)] == [100, 60, 5]
    assert [strict.num_new_tokens(one, start, 5) for start in (0, 10, 64, 191, 192, 199, 200, 209)] == [
        64,
        54,
        64,
        1,
        8,
        1,
        1,
        1,
    ]
    assert [ordinary.num_cacheable_tokens(one, computed) for computed in (10, 205)] == [10, 205]
    assert [strict.num_cacheable_tokens(one, computed) for computed in (64, 192, 200, 210)] == [64, 192, 192, 192]
    assert strict.num_cacheable_tokens(sequence("b", tokens=128, prompt=128), 128) == 128
    assert ChunkedPrefill(16, 10, strict=True).alignment == 16
    assert not ChunkedPrefill(16, 100, strict=False).is_strict


def waiting(line: RequestQueue, *sequences: Any) -> None:
    for each in sequences:
        line.register(each)
        line.add(each)


def order(line: RequestQueue) -> list[str]:
    return [each.cache_request.id for each in line]


def test_whose_turn_it_is() -> None:
    line = RequestQueue()
    first, second, third = sequence("1", "a"), sequence("2", "b"), sequence("3", "a")
    waiting(line, first, second, third)
    assert (order(line), len(line), second in line, sequence("4") in line) == (["1", "2", "3"], 3, True, False)
    # A prompt's token counts once, a generated one twice.
    line.charge(first, 3)
    assert order(line) == ["2", "1", "3"]
    second.num_output_tokens = 1
    line.charge(second, 1)
    assert order(line) == ["2", "1", "3"]
    line.charge(second, 1)
    assert order(line) == ["1", "3", "2"]
    urgent, own = sequence("5", "a", rank=-1), sequence("6", "a", own=-1)
    waiting(line, urgent, own)
    # The urgent one before all, and what a tenant ranks first among its own.
    assert order(line) == ["5", "6", "1", "3", "2"]
    line.remove(first)
    line.add(first)
    assert order(line) == ["5", "6", "1", "3", "2"]
    for each in (urgent, own, first, third):
        line.remove(each)
    assert order(line) == ["2"]


def test_who_comes_back_begins_level_with_who_got_least() -> None:
    line = RequestQueue()
    one, other = sequence("1", "a"), sequence("2", "b")
    waiting(line, one, other)
    line.charge(one, 10)
    line.charge(other, 6)
    waiting(line, sequence("3", "c"))
    assert line._service == {"a": 10, "b": 6, "c": 6}
    # Who was served more before it left does not begin at less.
    line.remove(one)
    line.unregister(one)
    waiting(line, sequence("4", "a"))
    assert line._service["a"] == 10
    for each in [*line]:
        line.remove(each)
        line.unregister(each)
    waiting(line, sequence("5", "b"))
    assert line._service == {"b": 0}


def test_where_keys_and_values_go() -> None:
    span = TokenSpan([7, 8, 9], 3, [[5, 2], [1, 4]], num_draft_tokens=1, lora_id=2)
    assert (span.end, span.slot_mapping(4), span.slot_mapping(4, 1)) == (6, [23, 8, 9], [7, 16, 17])
    assert [(row.tokens, row.start, row.num_draft_tokens, row.lora_id) for row in span.rows()] == [
        ([7], 3, 0, 2),
        ([8], 4, 0, 2),
        ([9], 5, 0, 2),
    ]


def test_an_engine_fails_after_so_many_steps_and_is_dead_for_good() -> None:
    health = EngineHealth()
    for number in range(FAILURE_THRESHOLD - 1):
        health.record_failure(RuntimeError(f"\nstep {number}\nmore"))
    assert health.failure is None
    health.record_failure(RuntimeError("last\nmore"))
    assert health.failure == f"the last {FAILURE_THRESHOLD} steps of the engine failed (last): see the server's log"
    health.record_success()
    assert health.failure is None
    health.record_failure(RuntimeError())
    assert health.failure is None
    health.set_fatal("the first reason")
    health.set_fatal("another")
    health.record_success()
    assert health.failure == "the first reason"
    assert (first_line(ValueError()), first_line(ValueError(" a \nb"))) == ("ValueError", "a ")
    for error in (MemoryError(), torch.OutOfMemoryError()):
        assert "ran out of memory" in client_error(error).message
    assert "the engine failed on this request" in client_error(ValueError("secret")).message


def config(**fields: Any) -> Any:
    return SimpleNamespace(**{"num_hidden_layers": 3} | fields)


LIMITED, WHOLE = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, [("full", 0)] * 3),
        ({"sliding_window": 8}, [("sliding_window", 8)] * 3),
        ({"sliding_window": 8, "use_sliding_window": False}, [("full", 0)] * 3),
        ({"sliding_window": 8, "layer_types": [LIMITED, WHOLE]}, [("sliding_window", 8), ("full", 0)]),
        # A limited layer without a limit sees everything.
        ({"layer_types": [LIMITED, "chunked_attention"]}, [("full", 0)] * 2),
        ({"attention_chunk_size": 16, "layer_types": ["chunked_attention"]}, [("chunked_local", 16)]),
    ],
)
def test_how_far_layers_reach(fields: dict[str, Any], kinds: list[tuple[str, int]]) -> None:
    assert layer_kinds(config(**fields)) == kinds


@pytest.mark.parametrize(
    ("types", "groups"),
    [
        ("fff", [(0, 1, 2)]),
        ("sfssf", [(0, 3), (2,), (1, 4)]),
        ("ssssfff", [(0, 1, 2, 3), (4, 5, 6)]),
        ("ssfssfs", [(0, 4), (1, 6), (3,), (2, 5)]),
        ("sf", [(0,), (1,)]),
        ("ssff", [(0, 1), (2, 3)]),
        # Half as many again is too much for one size.
        ("sssff", [(0, 2), (1,), (3, 4)]),
    ],
)
def test_layers_share_tables_in_groups_of_a_size(types: str, groups: list[tuple[int, ...]]) -> None:
    names = [{"s": LIMITED, "f": WHOLE}[letter] for letter in types]
    found = group_layers(config(sliding_window=8, layer_types=names))
    assert [group.layers for group in found] == groups
    assert [group.index for group in found] == list(range(len(groups)))
    placed = pool_slots(found)
    assert sorted(placed) == list(range(len(types)))
    assert all(groups[group][slot] == layer for layer, (group, slot) in placed.items())


def test_a_chunk_has_the_name_of_its_last_block() -> None:
    driven = Driven(tiny(), {"host": "1MiB"})
    tokens = list(range(40))
    chain = driven.engine.manager.hasher.chain(tokens, 4)
    names = driven.tiers._transfer.names(CacheRequest("r", tokens), 0, 2)
    assert [(name.digest, list(name.tokens)) for name in names] == [
        (chain[3], tokens[:16]),
        (chain[7], tokens[16:32]),
    ]
    assert driven.tiers._transfer.names(CacheRequest("r", tokens), 1, 2) == names[1:]


def test_in_strict_mode_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NgramProposer, "propose", lambda lookup, tokens, count: [1] * count)
    drafts: dict[bool, set[int]] = {}
    for strict in (False, True):
        driven = Driven(tiny(), {}, batch_invariant=strict, num_speculative_tokens=3)
        seen = drafts[strict] = set()
        forward = driven.engine._runner.execute_model

        def watched(plan: Any, seen: set[int] = seen, forward: Any = forward) -> Any:
            seen.update(span.num_draft_tokens for _, span in [*plan.prefills, *plan.decodes])
            return forward(plan)

        driven.engine._runner.execute_model = watched  # type: ignore[method-assign]
        driven.submit("a", [1, 2, 3, 4] * 6, 24)
        driven.run()
    assert drafts[True] == {0}
    assert max(drafts[False]) > 0


def test_a_pool_beyond_all_memory_is_refused_with_its_size() -> None:
    shape = tiny().shape
    blocks = 2**40
    size = blocks * shape.block_bytes(16, torch.float32) / 2**30
    with pytest.raises(SettingsError, match=rf"needs {size:.1f} GiB, more than cpu has: lower num_blocks"):
        KVPool(shape, blocks, 16, torch.float32, torch.device("cpu"))


def test_queries_that_grow_with_their_place_do_so_once_and_by_the_batchs_positions() -> None:
    model = tiny("llama4").model
    layers = [module for module in model.modules() if hasattr(module, "attn_temperature_tuning")]
    assert [
        (layer.attn_temperature_tuning, hasattr(layer, "query_temperature")) for layer in layers if not layer.use_rope
    ] == [(False, True)]
    assert not any(hasattr(layer, "query_temperature") for layer in layers if layer.use_rope)
    (tuned,) = (layer for layer in layers if not layer.use_rope)
    found = tuned.query_temperature(torch.tensor([0, 18, 19, 38, 39, 59]))
    assert found.tolist() == pytest.approx([1 + 0.1 * math.log1p(steps) for steps in (0, 0, 1, 1, 2, 3)])


async def test_what_each_tier_would_add_is_told_without_loading_it() -> None:
    tokens = list(range(50))
    worker = AsyncLLM(tiny(), EngineSettings(num_blocks=100, block_size=4), TierSettings(host="64MiB", chunk_tokens=16))
    await worker.start()
    try:
        asked = GenerationRequest("a", tuple(tokens), SamplingParams(max_tokens=1, temperature=0.0))
        assert [delta.finish_reason async for delta in worker.generate(asked)] == ["length"]
        assert worker._engine.tiers is not None
        assert await asyncio.to_thread(worker._engine.tiers.chain.flush, 20)
        assert await worker.tier_match(CacheRequest("q", tokens), 0) == {"host": 48}
        assert await worker.tier_match(CacheRequest("q", tokens), 16) == {"host": 32}
        assert await worker.tier_match(CacheRequest("q", [7, *tokens]), 0) == {}
    finally:
        await worker.stop()
    plain = AsyncLLM(tiny(), EngineSettings(num_blocks=100, block_size=4))
    assert await plain.tier_match(CacheRequest("q", tokens), 0) == {}
