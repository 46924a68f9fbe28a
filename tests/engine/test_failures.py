"""A request fails alone, a failed step costs its own requests only, and a dead device is known to be dead."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

import pytest
import torch

from kvproxy.apis.codecs.generation import GenerationRequest, SamplingParams
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.core import EngineCore
from kvproxy.engine.sampler import sample
from kvproxy.engine.scheduler.scheduler import Scheduler
from kvproxy.engine.step_errors import StepFailed, error_for_client, first_line, is_device_error
from kvproxy.engine.worker.model_runner import ModelRunner
from kvproxy.errors import KvproxyError, Overloaded
from kvproxy.settings import EngineSettings
from tests.engine.driven import Driven
from tests.engine.models import random_model, reference, tiny
from tests.tiers.doubles import DictStore

PROMPTS = {"good": (5, 6, 7, 8, 9, 10, 11, 12, 13), "bad": (40, 41, 42, 43, 44, 45, 46, 47, 48)}
SAMPLE = "kvproxy.engine.core.sample"
SCORE = "kvproxy.engine.scheduler.sequence.score_tokens"


@cache
def good_tokens() -> list[int]:
    return reference(random_model("llama"), PROMPTS["good"], 6)


def run(driven: Driven) -> int:
    failed = 0
    for _ in range(100):
        if not driven.engine.has_work:
            return failed
        try:
            driven.step()
        except StepFailed:
            failed += 1
    raise AssertionError("the engine does not come to an end")


def cached(driven: Driven, prompt: tuple[int, ...]) -> int:
    return driven.engine.manager.get_computed_blocks(CacheRequest("probe", prompt)).num_tokens


def raising(message: str = "out of luck") -> Callable[..., Any]:
    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError(message)

    return fail


def sample_without_7(logits: Any, params: Any, *more: Any) -> Any:
    drawn = sample(logits, params, *more)
    return raising()() if any(each.top_k == 7 for each in params) else drawn


@pytest.mark.parametrize("part", ["sampler", "detokenizer", "prompt logprobs", "callback"])
def test_a_row_that_fails_ends_its_own_request_alone(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven()
    seeded = {"temperature": 1.0, "seed": 11}
    driven.submit("before", PROMPTS["good"], 6, **seeded)
    run(driven)
    more: dict[str, Any] = {"n": 2}
    if part == "sampler":
        monkeypatch.setattr(SAMPLE, sample_without_7)
        more = {"top_k": 7, "temperature": 1.0}
    elif part == "callback":
        more["emit"] = raising()
    elif part == "prompt logprobs":
        monkeypatch.setattr(SCORE, raising())
        more = {"prompt_logprobs": 1}
    driven.submit("bad", PROMPTS["bad"], 6, **more)
    if part == "detokenizer":
        (waiting,) = driven.engine._scheduler.waiting
        monkeypatch.setattr(waiting._detokenizer, "push", raising())
    driven.submit("good", PROMPTS["good"], 6, **seeded)
    driven.submit("greedy", PROMPTS["good"], 6)
    assert run(driven) == 0
    assert driven.tokens["good#0"] == driven.tokens["before#0"]
    assert driven.tokens["greedy#0"] == good_tokens()
    assert driven.errors["good"] == []
    assert {type(error) for error in driven.errors["bad"]} == {Overloaded}
    assert driven.pieces.get("bad", []) == [], "nothing is sent after the failure, of no answer"
    assert driven.engine.manager.stats().used == 0
    assert cached(driven, PROMPTS["good"]) == 8
    # The failed step's blocks of the bad request are not cached.
    assert cached(driven, PROMPTS["bad"]) == 0


def test_a_failed_forward_costs_its_own_requests_and_leaves_what_was_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(max_num_batched_tokens=9, max_num_seqs=2)
    driven.submit("before", PROMPTS["good"], 6)
    run(driven)
    forward = ModelRunner.execute_model

    def harmed(runner: ModelRunner, plan: Any) -> Any:
        outputs = forward(runner, plan)
        return raising()() if any(sequence.request.id.startswith("bad") for sequence, _ in plan.prefills) else outputs

    long = PROMPTS["bad"] * 3
    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "execute_model", harmed)
        for id, prompt in (("bad", long), ("bad too", long), ("waits", PROMPTS["good"])):
            driven.submit(id, prompt, 6)
        assert run(driven) >= 1
    assert driven.tokens["waits#0"] == good_tokens()
    assert [len(driven.errors[id]) for id in ("bad", "bad too", "waits")] == [1, 1, 0]
    # The prompt that was cached before the failure still is; of the failed one nothing is.
    assert (cached(driven, PROMPTS["good"]), cached(driven, long)) == (8, 0)
    driven.submit("again", long, 6)
    run(driven)
    assert driven.tokens["again#0"] == reference(random_model("llama"), long, 6)


@pytest.mark.parametrize("tiered", [False, True])
def test_whoever_shares_blocks_that_were_not_written_fails_with_them(
    tiered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = Driven(tiers={"host": "64MiB"} if tiered else {})
    prompt = tuple(range(50, 100))
    if tiered:
        store = DictStore()
        driven.replace_store(store)
        driven.submit("cold", prompt, 1)
        driven.run()
        driven.settle()
        driven.forget_pool()
        first = driven.tiers._transfer.chunk_names(CacheRequest("names", prompt), 0, 1)[0].key
        del store.chunks[first]
    driven.submit("computes", prompt[:20])
    driven.submit("shares", prompt)
    monkeypatch.setattr(ModelRunner, "execute_model", raising())
    assert run(driven) == 1
    assert [len(driven.errors[id]) for id in ("computes", "shares")] == [1, 1]
    assert driven.engine.manager.stats().used == driven.engine.manager.stats().cached == 0
    driven.engine.close()


@pytest.fixture
async def worker() -> AsyncIterator[AsyncLLM]:
    made = AsyncLLM(tiny(), EngineSettings(num_blocks=60, block_size=4))
    await made.start()
    yield made
    await made.stop()


def ask(worker: AsyncLLM, name: str, id: str, **more: Any) -> "asyncio.Future[list[int]]":
    params = SamplingParams(**({"max_tokens": 6, "temperature": 0.0} | more))

    async def collect() -> list[int]:
        request = GenerationRequest(id, PROMPTS[name], params)
        return [token async for delta in worker.generate(request) for token in delta.tokens]

    return asyncio.ensure_future(asyncio.wait_for(collect(), 60))


async def test_failed_steps_are_told_and_forgotten_with_the_next_good_one(
    worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "execute_model", raising("out of luck"))
        for number in range(3):
            assert worker.failure is None
            with pytest.raises(Overloaded, match="failed on this request"):
                await ask(worker, "bad", f"bad{number}")
        # The client receives the error before the step's end is recorded; a job runs after it.
        await worker.inspect(lambda manager: None)
        assert "out of luck" in (worker.failure or "")
    assert await ask(worker, "good", "good") == good_tokens()
    assert worker.failure is None


async def test_an_engine_in_an_unknown_state_starts_empty(worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await ask(worker, "good", "one") == good_tokens()
    plan = Scheduler.schedule

    def broken(scheduler: Scheduler) -> None:
        plan(scheduler)
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "schedule", broken)
        with pytest.raises(Overloaded, match="failed"):
            await ask(worker, "bad", "two")
    stats = await worker.inspect(lambda manager: manager.stats())
    assert (stats.used, stats.cached) == (0, 0)
    assert await ask(worker, "good", "three") == good_tokens()


@pytest.mark.parametrize("place", ["forward", SAMPLE, SCORE])
async def test_a_dead_device_is_known_and_refuses_at_once(
    place: str, worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = raising("CUDA error: an illegal memory access was encountered")
    with monkeypatch.context() as patch:
        if place == "forward":
            patch.setattr(ModelRunner, "execute_model", fail)
        else:
            patch.setattr(place, fail)
        for answer in [ask(worker, name, name, prompt_logprobs=1) for name in PROMPTS]:
            with pytest.raises(Overloaded):
                await answer
        await worker.inspect(lambda manager: None)
        assert "illegal memory access" in (worker.failure or "")
    # CUDA answers every later call with the same error, so a good forward pass changes nothing.
    with pytest.raises(Overloaded, match="start the server again"):
        await ask(worker, "good", "later")


async def test_a_request_that_cannot_be_queued_fails_alone(worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(worker, "good", "twin")
    with pytest.raises(KvproxyError, match="in use"):
        await ask(worker, "bad", "twin")
    assert await first == good_tokens()
    with monkeypatch.context() as patch:
        patch.setattr(worker._engine, "add_request", raising("out of luck"))
        with pytest.raises(Overloaded, match="failed on this request"):
            await ask(worker, "bad", "one")
    assert await ask(worker, "good", "two") == good_tokens()


async def test_events_that_cannot_be_published_cost_no_answer(
    worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        publish = staticmethod(raising("no socket"))
        publish_all = publish

        def close(self) -> None: ...

    worker._engine.manager.pool.record_events = True
    monkeypatch.setattr(worker._thread, "publisher", Broken())
    assert await ask(worker, "good", "one") == good_tokens()
    assert worker.failure is None


async def test_a_thread_that_ends_is_known_and_leaves_nobody_waiting(
    worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineCore, "fail_all", raising("broken twice"))
    monkeypatch.setattr(Scheduler, "schedule", raising("broken"))
    with pytest.raises(Overloaded):
        await ask(worker, "good", "one")
    assert "broken twice" in (worker.failure or "")


def test_device_errors_are_told_from_others() -> None:
    assert is_device_error(torch.AcceleratorError("CUDA error: device-side assert triggered"))
    assert is_device_error(RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"))
    assert not is_device_error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not is_device_error(RuntimeError("shape mismatch"))
    assert not is_device_error(ValueError("CUDA error"))


def test_errors_are_told_in_one_line_and_without_their_content() -> None:
    assert (first_line(ValueError()), first_line(ValueError(" a \nb"))) == ("ValueError", "a ")
    for error in (MemoryError(), torch.OutOfMemoryError()):
        assert "ran out of memory" in error_for_client(error).message
    assert "the engine failed on this request" in error_for_client(ValueError("secret")).message
