"""Loads from a tier: which requests wait, and which tokens are computed if a load fails."""

import asyncio
import threading
import time

from kvproxy.apis.codecs.generation import GenerationRequest, SamplingParams
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.tier_chain import TierChain
from tests.engine.driven import ANSWER, Driven, prompts_of
from tests.engine.models import VOCABULARY, random_model, reference, tiny
from tests.polling import until_async
from tests.tiers.doubles import DictStore


def gated(prompts: list[list[int]], **tiers: float) -> tuple[Driven, DictStore, threading.Event]:
    driven = Driven(tiers={"host": "64MiB"} | tiers)
    gate, store = threading.Event(), DictStore()
    driven.replace_store(store)
    driven.answers(prompts, "cold")
    driven.settle()
    driven.forget_pool()
    get = store.get
    store.get = lambda key: get(key) if gate.wait(600) else None  # type: ignore[method-assign]
    return driven, store, gate


def test_a_load_does_not_hold_up_the_others_and_is_shared() -> None:
    prompts, expected = prompts_of("llama")
    prompt, other = prompts[1], [VOCABULARY - 1 - token for token in prompts[2]]
    driven, store, gate = gated([prompt])
    driven.submit("first", prompt)
    driven.submit("same", prompt)
    driven.submit("other", other)
    while "other#0" not in driven.tokens or len(driven.tokens["other#0"]) < ANSWER:
        driven.step()
    assert "first#0" not in driven.tokens
    assert "same#0" not in driven.tokens
    gate.set()
    driven.run()
    assert driven.tokens["first#0"] == driven.tokens["same#0"] == expected[1]
    assert driven.tokens["other#0"] == reference(random_model("llama"), other, ANSWER)
    assert driven.usage["first"].tier_tokens == len(prompt) // 16 * 16
    # The second one waited for the load of the first, and then found the blocks in the pool.
    assert driven.usage["same"].tier_tokens == 0
    assert driven.usage["same"].cached_tokens >= driven.usage["first"].tier_tokens
    assert store.calls["get"] == len(prompt) // 16
    driven.engine.close()


def test_what_hangs_is_computed_after_the_timeout_and_later_requests_do_not_wait() -> None:
    prompts, expected = prompts_of("llama")
    driven, _, gate = gated(prompts, load_timeout=0.2)
    began = time.monotonic()
    assert driven.answers(prompts, "hung") == expected
    assert time.monotonic() - began < 60
    assert all(usage.tier_tokens == 0 for id, usage in driven.usage.items() if id.startswith("hung"))
    driven.forget_pool()
    # Both readers still hang: no request waits for a third.
    later = GenerationRequest("later", tuple(prompts[0]), SamplingParams(max_tokens=2, temperature=0.0))
    assert driven.tiers.max_matched_tokens(driven.engine.add_request(later, lambda delta: None), 0) == 0
    driven.run()
    gate.set()
    driven.engine.close()


async def test_a_client_that_leaves_during_a_load_frees_its_blocks_and_the_thread_sleeps() -> None:
    prompts, expected = prompts_of("llama")
    worker = AsyncLLM(
        tiny(),
        EngineSettings(num_blocks=200, block_size=4),
        TierSettings(host=1 << 26, chunk_tokens=16, load_timeout=3600.0),  # type: ignore[arg-type]
    )
    tiers = worker._engine.tiers
    assert tiers is not None
    gate, store = threading.Event(), DictStore()
    tiers.chain.close()
    tiers.chain = TierChain([store])
    await worker.start()
    request = GenerationRequest("a", tuple(prompts[0]), SamplingParams(max_tokens=ANSWER, temperature=0.0))
    cold = [token async for delta in worker.generate(request) for token in delta.tokens]
    assert tiers.chain.flush(300)
    await worker.inspect(lambda manager: manager.reset_prefix_cache())
    get = store.get
    store.get = lambda key: get(key) if gate.wait(600) else None  # type: ignore[method-assign]
    steps = 0
    step = worker._engine.step

    def counted() -> bool:
        nonlocal steps
        steps += 1
        return step()

    worker._engine.step = counted  # type: ignore[method-assign]
    pieces = worker.generate(request)
    waiting = asyncio.ensure_future(anext(pieces))
    await until_async(lambda: steps > 0)
    assert (await worker.inspect(lambda manager: manager.stats())).used > 0
    await asyncio.sleep(0.3)
    assert steps < 10
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await pieces.aclose()  # type: ignore[attr-defined]
    assert (await worker.inspect(lambda manager: manager.stats())).used == 0
    gate.set()
    assert [token async for delta in worker.generate(request) for token in delta.tokens] == cold == expected[0]
    await worker.stop()
    assert store.calls["close"] == 1


async def test_what_each_tier_would_add_is_told_without_loading_it() -> None:
    tokens = list(range(50))
    worker = AsyncLLM(tiny(), EngineSettings(num_blocks=100, block_size=4), TierSettings(host="64MiB", chunk_tokens=16))
    await worker.start()
    try:
        asked = GenerationRequest("a", tuple(tokens), SamplingParams(max_tokens=1, temperature=0.0))
        assert [delta.finish_reason async for delta in worker.generate(asked)] == ["length"]
        assert worker._engine.tiers is not None
        assert await asyncio.to_thread(worker._engine.tiers.chain.flush, 300)
        assert await worker.match_tiers(CacheRequest("q", tokens), 0) == {"host": 48}
        assert await worker.match_tiers(CacheRequest("q", tokens), 16) == {"host": 32}
        assert await worker.match_tiers(CacheRequest("q", [7, *tokens]), 0) == {}
    finally:
        await worker.stop()
    plain = AsyncLLM(tiny(), EngineSettings(num_blocks=100, block_size=4))
    assert await plain.match_tiers(CacheRequest("q", tokens), 0) == {}
