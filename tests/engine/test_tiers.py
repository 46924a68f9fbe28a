"""Tokens equal `model.generate`'s after chunks went to a tier and came back, whatever happens on the way."""

import asyncio
import random
import threading
import time
from pathlib import Path

import pytest

from kvproxy.engine.worker import EngineWorker
from kvproxy.errors import SettingsError
from kvproxy.generation import GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.chain import TierChain
from kvproxy.tiers.store import Data, DictStore
from tests.engine.models import ARCHITECTURES, VOCABULARY, random_model, reference
from tests.engine.tiered import Driven, tiny
from tests.redis_server import RedisServer

ANSWER = 12


def prompts_of(name: str, count: int = 8) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts that share beginnings, and what the model answers."""
    chance = random.Random(name)
    shared = [chance.randrange(VOCABULARY) for _ in range(80)]
    prompts = [
        shared[: chance.randrange(20, 80)] + [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 30))]
        for _ in range(count)
    ]
    model = random_model(name)
    return prompts, [reference(model, prompt, ANSWER) for prompt in prompts]


def answers(driven: Driven, prompts: list[list[int]], round: str) -> list[list[int]]:
    for number, prompt in enumerate(prompts):
        driven.submit(f"{round}{number}", prompt, ANSWER)
    driven.run()
    return [driven.tokens[f"{round}{number}#0"] for number in range(len(prompts))]


def replace_store(driven: Driven, *stores: DictStore) -> None:
    """Put test doubles in the place of the tiers that the settings made."""
    driven.tiers.chain.close()
    driven.tiers.chain = TierChain(stores)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens_equal_generate_after_reload_from_every_tier(
    architecture: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    prompts, expected = prompts_of(architecture)
    every = {"host": "64MiB", "disk": tmp_path, "redis": redis_server.url}
    for tier in ("host", "disk", "redis"):
        first = Driven(tiny(architecture), {tier: every[tier]})
        assert answers(first, prompts, "cold") == expected
        first.settle()
        first.forget_pool()
        assert answers(first, prompts, "back") == expected
        assert first.hits()[tier] > 0
        assert max(usage.tier_tokens for usage in first.usage.values()) >= 16
        first.engine.close()
        if tier != "host":
            second = Driven(tiny(architecture), {tier: every[tier]})
            assert answers(second, prompts, "restart") == expected
            assert second.hits()[tier] > 0
            second.engine.close()


@pytest.mark.parametrize("blocks", [40, 60])
def test_tokens_equal_generate_under_eviction_pressure(blocks: int, tmp_path: Path) -> None:
    prompts, expected = prompts_of("llama", 12)
    driven = Driven(tiny(), {"host": "100KiB", "disk": tmp_path}, num_blocks=blocks)
    for round in ("a", "b", "c"):
        assert answers(driven, prompts, round) == expected
        driven.settle()
    assert driven.engine.manager.stats().evictions > 50
    assert driven.engine.manager.stats().used == 0
    assert driven.hits()["host"] + driven.hits()["disk"] > 0
    assert driven.tiers.chain.stats()[0]["evictions"] > 0
    driven.engine.close()


def test_cancellations_during_loads_leave_the_others_exact(tmp_path: Path) -> None:
    prompts, expected = prompts_of("llama", 12)
    driven = Driven(tiny(), {"disk": tmp_path}, num_blocks=80)
    answers(driven, prompts, "cold")
    driven.settle()
    chance = random.Random(7)
    caught = 0
    for turn in range(6):
        driven.forget_pool()
        doomed = []
        for number, prompt in enumerate(prompts):
            driven.submit(f"{turn}.{number}", prompt, ANSWER)
            if chance.random() < 0.5:
                doomed.append(f"{turn}.{number}")
        left = list(doomed)
        while driven.engine.has_work:
            if left and chance.random() < 0.7:
                id = left.pop()
                caught += any(sequence.source.id == id for sequence in driven.engine._scheduler.loading)
                driven.engine.cancel(id)
            driven.step()
        for number, tokens in enumerate(expected):
            if f"{turn}.{number}" not in doomed:
                assert driven.tokens[f"{turn}.{number}#0"] == tokens
        assert driven.engine.manager.stats().used == 0
    assert caught > 0
    driven.engine.close()


def test_a_load_does_not_hold_up_the_others_and_is_shared() -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(tiny(), {"host": "64MiB"})
    gate, store = threading.Event(), DictStore()
    replace_store(driven, store)
    answers(driven, prompts[:1], "cold")
    driven.settle()
    driven.forget_pool()
    get = store.get

    def slow(key: str) -> Data | None:
        assert gate.wait(20)
        return get(key)

    store.get = slow  # type: ignore[method-assign]
    driven.submit("first", prompts[0], ANSWER)
    driven.submit("same", prompts[0], ANSWER)
    other = [VOCABULARY - 1 - token for token in prompts[1]]
    driven.submit("other", other, ANSWER)
    while "other#0" not in driven.tokens or len(driven.tokens["other#0"]) < ANSWER:
        driven.step()
    assert "first#0" not in driven.tokens
    assert "same#0" not in driven.tokens
    gate.set()
    driven.run()
    assert driven.tokens["first#0"] == driven.tokens["same#0"] == expected[0]
    assert driven.tokens["other#0"] == reference(random_model("llama"), other, ANSWER)
    assert driven.usage["first"].tier_tokens == len(prompts[0]) // 16 * 16
    # The second one waited for the load of the first, and then found the blocks in the pool.
    assert driven.usage["same"].tier_tokens == 0
    assert driven.usage["same"].cached_tokens >= driven.usage["first"].tier_tokens
    assert store.calls["get"] == len(prompts[0]) // 16
    driven.engine.close()


def test_what_hangs_is_computed_after_the_timeout_and_later_requests_do_not_wait() -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(tiny(), {"host": "64MiB", "load_timeout": 0.2})
    gate, store = threading.Event(), DictStore()
    replace_store(driven, store)
    answers(driven, prompts, "cold")
    driven.settle()
    driven.forget_pool()
    store.get = lambda key: gate.wait(20) and None  # type: ignore[method-assign,assignment,return-value]
    began = time.monotonic()
    assert answers(driven, prompts, "hung") == expected
    assert time.monotonic() - began < 10
    assert all(usage.tier_tokens == 0 for id, usage in driven.usage.items() if id.startswith("hung"))
    driven.forget_pool()
    # Both readers still hang: nobody waits for a third.
    assert driven.tiers.reach(driven.engine.submit(_request(prompts[0]), lambda delta: None), 0) == 0
    driven.run()
    gate.set()
    driven.engine.close()


def _request(prompt: list[int]) -> GenerationRequest:

    return GenerationRequest("later", tuple(prompt), SamplingParams(max_tokens=2, temperature=0.0))


@pytest.mark.parametrize("harm", ["flip", "cut", "missing", "failing"])
def test_bad_chunks_are_computed_instead(harm: str) -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(tiny(), {"host": "64MiB"})
    store = DictStore()
    replace_store(driven, store)
    assert answers(driven, prompts, "cold") == expected
    driven.settle()
    driven.forget_pool()
    chance = random.Random(1)
    for key in sorted(store.chunks):
        data = bytearray(store.chunks[key])
        if chance.random() < 0.5:
            continue
        if harm == "flip":
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            store.chunks[key] = bytes(data)
        elif harm == "cut":
            store.chunks[key] = bytes(data[: chance.randrange(len(data))])
        elif harm == "missing":
            del store.chunks[key]
    store.failing = harm == "failing"
    assert answers(driven, prompts, "back") == expected
    driven.settle()
    if harm in ("flip", "cut"):
        assert driven.tiers.chain.stats()[0]["damaged"] > 0
    if harm == "failing":
        assert driven.tiers.chain.stats()[0]["hits"] == 0
    else:
        # A load ends at the first bad chunk, so each round may find one more of a chain; all are written again.
        damaged = [-1]
        for round in range(8):
            driven.forget_pool()
            assert answers(driven, prompts, f"again{round}") == expected
            driven.settle()
            damaged.append(driven.tiers.chain.stats()[0]["damaged"])
        assert damaged[-1] == damaged[-2]
    driven.engine.close()


def test_another_models_chunks_are_never_used(tmp_path: Path) -> None:
    prompts, _ = prompts_of("llama")
    for seed in (0, 1):
        driven = Driven(tiny(seed=seed), {"disk": tmp_path})
        expected = [reference(random_model("llama", seed), prompt, ANSWER) for prompt in prompts]
        assert answers(driven, prompts, "x") == expected
        assert driven.hits()["disk"] == 0
        driven.engine.close()


def test_redis_may_die_and_come_back(redis_server: RedisServer) -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(tiny(), {"redis": redis_server.url, "redis_timeout": 0.2})
    assert answers(driven, prompts, "cold") == expected
    driven.settle()
    driven.forget_pool()
    for number, prompt in enumerate(prompts):
        driven.submit(f"mid{number}", prompt, ANSWER)
    for _ in range(3):
        driven.step()
    redis_server.kill()
    driven.run()
    assert [driven.tokens[f"mid{number}#0"] for number in range(len(prompts))] == expected
    driven.forget_pool()
    began = time.monotonic()
    assert answers(driven, prompts, "down") == expected
    assert time.monotonic() - began < 5
    assert driven.tiers.chain.stats()[0]["errors"] > 0
    driven.engine.close()


def test_a_frozen_redis_is_passed_over(redis_server: RedisServer) -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(tiny(), {"redis": redis_server.url, "redis_timeout": 0.2})
    redis_server.freeze()
    began = time.monotonic()
    assert answers(driven, prompts, "frozen") == expected
    # Three timeouts open the breaker; every request waiting for its own would take 8 x 0.2 s and more.
    assert time.monotonic() - began < 8
    assert not driven.tiers.chain.stats()[0]["available"]
    driven.engine.close()


async def test_a_client_that_leaves_during_a_load_frees_its_blocks_and_the_thread_sleeps() -> None:
    prompts, expected = prompts_of("llama")
    worker = EngineWorker(
        tiny(),
        EngineSettings(num_blocks=200, block_size=4),
        TierSettings(host=1 << 26, chunk_tokens=16),  # type: ignore[arg-type]
    )
    tiers = worker._engine.tiers
    assert tiers is not None
    tiers.chain.close()
    gate, store = threading.Event(), DictStore()
    tiers.chain = TierChain([store])
    await worker.start()
    request = GenerationRequest("a", tuple(prompts[0]), SamplingParams(max_tokens=ANSWER, temperature=0.0))
    cold = [token async for delta in worker.generate(request) for token in delta.tokens]
    assert tiers.chain.flush(20)
    await worker.inspect(lambda manager: manager.reset_prefix_cache())
    get = store.get
    store.get = lambda key: get(key) if gate.wait(20) else None  # type: ignore[method-assign]
    steps = 0
    step = worker._engine.step

    def counted() -> None:
        nonlocal steps
        steps += 1
        step()

    worker._engine.step = counted  # type: ignore[method-assign]
    pieces = worker.generate(request)
    waiting = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0.3)
    assert (await worker.inspect(lambda manager: manager.stats())).used > 0
    assert steps < 10
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await pieces.aclose()  # type: ignore[attr-defined]
    assert (await worker.inspect(lambda manager: manager.stats())).used == 0
    gate.set()
    assert [token async for delta in worker.generate(request) for token in delta.tokens] == cold == expected[0]
    await worker.stop()
    assert store.calls["close"] == 1


def test_strict_hits_from_a_tier_are_bit_exact(tmp_path: Path) -> None:
    prompts, _ = prompts_of("llama")
    prompt = (prompts[0] * 4)[:150]
    driven = Driven(tiny(), {"disk": tmp_path}, strict=True)
    seen: list[list[float]] = []
    for round in range(2):
        values: list[float] = []

        params = SamplingParams(max_tokens=6, temperature=0.0, logprobs=0)
        driven.engine.submit(
            GenerationRequest(str(round), tuple(prompt), params),
            lambda delta, values=values: values.extend(item.logprob for item in delta.logprobs),  # type: ignore[misc]
        )
        driven.run()
        driven.settle()
        driven.forget_pool()
        seen.append(values)
    assert driven.hits()["disk"] == 128 // 16
    assert seen[0] == seen[1]
    driven.engine.close()


def test_no_memory_for_a_chunk_costs_the_chunk_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, expected = prompts_of("llama")
    driven = Driven(tiny(), {"host": "64MiB"})

    def short(*arguments: object, **more: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr("kvproxy.engine.chunks.Chunks.read", short)
    assert answers(driven, prompts, "cold") == expected
    (row,) = driven.tiers.chain.stats()
    assert (row["chunks"], row["dropped"] > 0) == (0, True)
    driven.engine.close()


def test_chunks_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(SettingsError, match="use 8"):
        Driven(tiny(), {"host": "1MiB", "chunk_tokens": 10})


def test_a_tier_that_could_never_keep_a_chunk_is_refused(tmp_path: Path) -> None:
    for tiers, name in (({"host": "1KiB"}, "tiers.host"), ({"disk": tmp_path / "d", "disk_size": "1KiB"}, "disk_size")):
        with pytest.raises(SettingsError, match=f"{name}.*0.0 MiB.*or raise it"):
            Driven(tiny(), tiers)
    assert not (tmp_path / "d").exists()


def test_salts_keep_chunks_apart() -> None:

    prompts, _ = prompts_of("llama")
    driven = Driven(tiny(), {"host": "64MiB"})
    usage: dict[str, int] = {}
    for id, salt in (("a", "one"), ("b", "two"), ("c", "one")):
        driven.engine.submit(
            GenerationRequest(id, tuple(prompts[0]), SamplingParams(max_tokens=2, temperature=0.0), salt=salt),
            lambda delta, id=id: usage.update({id: delta.usage.tier_tokens}),  # type: ignore[misc]
        )
        driven.run()
        driven.settle()
        driven.forget_pool()
    assert usage["a"] == usage["b"] == 0
    assert usage["c"] > 0
    driven.engine.close()
