"""Small rules of the engine, one by one: bounds of requests, division into pieces, whose turn it is, and when it fails."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvproxy.blocks.request import CacheRequest
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.health import FAILURE_THRESHOLD, EngineHealth, client_error, first_line
from kvproxy.engine.limits import EngineLimits
from kvproxy.engine.models.layer_groups import group_layers, layer_kinds, pool_slots
from kvproxy.engine.sampler.sampler import UniformStream
from kvproxy.engine.scheduler.request_queue import RequestQueue
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.errors import ContextTooLong, InvalidRequest, SettingsError
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings, TierSettings
from tests.engine.tiered import tiny

LIMITS = EngineLimits(vocab_size=300, max_model_len=100, pool_tokens=80)


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


def test_a_pool_beyond_all_memory_is_refused_with_its_size() -> None:
    shape = tiny().shape
    blocks = 2**40
    size = blocks * shape.block_bytes(16, torch.float32) / 2**30
    with pytest.raises(SettingsError, match=rf"needs {size:.1f} GiB, more than cpu has: lower num_blocks"):
        KVPool(shape, blocks, 16, torch.float32, torch.device("cpu"))


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
