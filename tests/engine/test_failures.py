"""A request fails alone, a failed step costs its own requests only, and a dead device is known to be dead."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch

from kvproxy.blocks.request import CacheRequest
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.core import EngineCore
from kvproxy.engine.health import StepFailed, is_device_error
from kvproxy.engine.sampler.sampler import sample
from kvproxy.engine.scheduler.scheduler import Scheduler
from kvproxy.engine.worker.model_runner import ModelRunner
from kvproxy.errors import KvproxyError, Overloaded
from kvproxy.generation import Delta, GenerationRequest, SamplingParams
from kvproxy.settings import EngineSettings
from tests.engine.models import random_model, reference
from tests.engine.tiered import Driven, replace_store, tiny
from tests.reference.integrity import check_integrity
from tests.tiers.doubles import DictStore

PROMPTS = {"good": (5, 6, 7, 8, 9, 10, 11, 12, 13), "bad": (40, 41, 42, 43, 44, 45, 46, 47, 48)}


class Desk:
    """An engine stepped by hand, with what became of its requests."""

    def __init__(self, **settings: Any) -> None:
        self.engine = EngineCore(tiny(), EngineSettings(**({"num_blocks": 60, "block_size": 4} | settings)))
        self.tokens: dict[str, list[int]] = {}
        self.errors: dict[str, list[KvproxyError]] = {}

    def submit(
        self, id: str, prompt: tuple[int, ...], emit: Callable[[Delta], None] | None = None, **more: Any
    ) -> None:
        params = SamplingParams(**({"max_tokens": 6, "temperature": 0.0} | more))
        tokens, errors = self.tokens.setdefault(id, []), self.errors.setdefault(id, [])
        self.engine.add_request(
            GenerationRequest(id, prompt, params), emit or (lambda delta: tokens.extend(delta.tokens)), errors.append
        )

    def run(self) -> int:
        """Until nothing is left to do; how many steps failed."""
        failed = 0
        for _ in range(100):
            if not self.engine.has_work:
                return failed
            try:
                self.engine.step()
            except StepFailed:
                failed += 1
            check_integrity(self.engine.manager)
        raise AssertionError("the engine does not come to an end")

    def cached(self, prompt: tuple[int, ...]) -> int:
        """Tokens of a prompt that the pool holds."""
        return self.engine.manager.get_computed_blocks(CacheRequest("probe", prompt)).num_tokens


def expected(name: str, count: int = 6) -> list[int]:
    return reference(random_model("llama"), PROMPTS[name], count)


def raising(message: str = "out of luck") -> Callable[..., Any]:
    def fail(*arguments: object, **more: object) -> None:
        raise RuntimeError(message)

    return fail


@pytest.mark.parametrize("what", ["sampler", "detokenizer", "prompt logprobs", "callback"])
def test_a_row_that_fails_ends_its_own_request_alone(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.submit("before", PROMPTS["good"])
    desk.run()
    cached = desk.cached(PROMPTS["good"])
    more: dict[str, Any] = {"n": 2}
    emit = None
    if what == "sampler":
        # As a value would that only the sampler stumbles over.
        draw = sample
        monkeypatch.setattr(
            "kvproxy.engine.output_processor.sample",
            lambda logits, params, *more: (
                raising()() if any(each.top_k == 7 for each in params) else draw(logits, params, *more)
            ),
        )
        more = {"top_k": 7, "temperature": 1.0}
    elif what == "callback":
        emit = raising()
    elif what == "prompt logprobs":
        monkeypatch.setattr("kvproxy.engine.scheduler.sequence.score_tokens", raising())
        more = {"prompt_logprobs": 1}
    desk.submit("bad", PROMPTS["bad"], emit, **more)
    if what == "detokenizer":
        (waiting,) = desk.engine._scheduler.waiting
        monkeypatch.setattr(waiting._detokenizer, "push", raising())
    desk.submit("good", PROMPTS["good"])
    assert desk.run() == 0
    assert desk.tokens["good"] == desk.tokens["before"] == expected("good")
    assert desk.errors["good"] == []
    assert {type(error) for error in desk.errors["bad"]} == {Overloaded}
    assert desk.tokens["bad"] == [], "nothing is sent after the failure, of no answer"
    assert desk.engine.manager.stats().used == 0
    assert desk.cached(PROMPTS["good"]) == cached == 8
    # What the failed step had named for the bad one is not vouched for.
    assert desk.cached(PROMPTS["bad"]) == 0


def test_seeded_answers_do_not_change_when_a_neighbour_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_before = []
    for neighbour in (False, True):
        desk = Desk()
        desk.submit("seeded", PROMPTS["good"], temperature=1.0, seed=11)
        if neighbour:
            desk.submit("bad", PROMPTS["bad"], temperature=1.0, top_k=7)
            draw = sample

            def harmed(logits: Any, params: Any, *more: Any, draw: Any = draw) -> Any:
                # Only after the draw, which must not be lost for the others.
                drawn = draw(logits, params, *more)
                return raising()() if any(each.top_k == 7 for each in params) else drawn

            monkeypatch.setattr("kvproxy.engine.output_processor.sample", harmed)
        desk.run()
        drawn_before.append(desk.tokens["seeded"])
    assert drawn_before[0] == drawn_before[1]
    assert len(drawn_before[0]) == 6


def test_a_failed_forward_costs_its_own_requests_and_leaves_what_was_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(max_num_batched_tokens=9, max_num_seqs=2)
    desk.submit("before", PROMPTS["good"])
    desk.run()
    forward = ModelRunner.execute_model

    def harmed(runner: ModelRunner, plan: Any) -> Any:
        outputs = forward(runner, plan)
        return raising()() if any(sequence.request.id.startswith("bad") for sequence, _ in plan.prefills) else outputs

    monkeypatch.setattr(ModelRunner, "execute_model", harmed)
    long = PROMPTS["bad"] * 3
    desk.submit("bad", long)
    desk.submit("bad too", long)
    desk.submit("waits", PROMPTS["good"])
    assert desk.run() >= 1
    assert desk.tokens["waits"] == expected("good")
    assert len(desk.errors["bad"]) == len(desk.errors["bad too"]) == 1
    assert desk.errors["waits"] == []
    # The prompt that was cached before the failure still is; of the failed one nothing is.
    assert desk.cached(PROMPTS["good"]) == 8
    assert desk.cached(long) == 0
    monkeypatch.setattr(ModelRunner, "execute_model", forward)
    desk.submit("again", long)
    desk.run()
    assert desk.tokens["again"] == reference(random_model("llama"), long, 6)


def test_whoever_shares_blocks_that_were_not_written_fails_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.submit("first", PROMPTS["bad"])
    desk.submit("sharer", (*PROMPTS["bad"][:8], 99, 98))
    monkeypatch.setattr(ModelRunner, "execute_model", raising())
    assert desk.run() == 1
    assert len(desk.errors["first"]) == len(desk.errors["sharer"]) == 1
    assert desk.engine.manager.stats().cached == 0


def test_whoever_waits_for_a_tier_with_such_blocks_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first blocks were to be computed by another one's step, and only what follows lies in a tier."""
    driven = Driven(tiny(), {"host": "64MiB"})
    store = DictStore()
    replace_store(driven, store)
    prompt = tuple(range(50, 100))
    driven.submit("cold", prompt, 1)
    driven.run()
    driven.settle()
    driven.forget_pool()
    first = driven.tiers._transfer.names(CacheRequest("names", prompt), 0, 1)[0].key
    del store.chunks[first]
    errors: dict[str, list[KvproxyError]] = {"computes": [], "loads": []}
    params = SamplingParams(max_tokens=4, temperature=0.0)
    for id, tokens in (("computes", prompt[:20]), ("loads", prompt)):
        driven.engine.add_request(GenerationRequest(id, tokens, params), lambda delta: None, errors[id].append)
    monkeypatch.setattr(ModelRunner, "execute_model", raising())
    with pytest.raises(StepFailed):
        driven.step()
    assert [len(told) for told in errors.values()] == [1, 1]
    assert not driven.engine.has_work
    assert driven.engine.manager.stats().used == driven.engine.manager.stats().cached == 0
    check_integrity(driven.engine.manager)
    driven.engine.close()


def test_the_same_id_twice_is_refused_and_the_first_goes_on() -> None:
    desk = Desk()
    desk.submit("twice", PROMPTS["good"])
    with pytest.raises(KvproxyError, match="in use"):
        desk.engine.add_request(GenerationRequest("twice", (1, 2), SamplingParams(max_tokens=1)), lambda delta: None)
    desk.run()
    assert desk.tokens["twice"] == expected("good")


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

    return asyncio.ensure_future(collect())


async def test_failed_steps_are_told_and_forgotten_with_the_next_good_one(
    worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = ModelRunner.execute_model
    monkeypatch.setattr(ModelRunner, "execute_model", raising("out of luck"))
    for number in range(3):
        assert worker.failure is None
        with pytest.raises(Overloaded, match="failed on this request"):
            await ask(worker, "bad", f"bad{number}")
    # The client is told before the step's end is noted; a job comes after it.
    await worker.inspect(lambda manager: None)
    assert "out of luck" in (worker.failure or "")
    monkeypatch.setattr(ModelRunner, "execute_model", forward)
    assert await ask(worker, "good", "good") == expected("good")
    assert worker.failure is None


async def test_an_engine_in_an_unknown_state_starts_empty(worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await ask(worker, "good", "one") == expected("good")
    plan = Scheduler.schedule

    def broken(scheduler: Scheduler) -> None:
        plan(scheduler)
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Scheduler, "schedule", broken)
    with pytest.raises(Overloaded, match="failed"):
        await ask(worker, "bad", "two")
    monkeypatch.setattr(Scheduler, "schedule", plan)
    stats = await worker.inspect(lambda manager: manager.stats())
    assert (stats.used, stats.cached) == (0, 0)
    assert await ask(worker, "good", "three") == expected("good")


async def test_a_dead_device_is_known_and_refuses_at_once(worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelRunner, "execute_model", raising("CUDA error: an illegal memory access was encountered"))
    both = [ask(worker, name, name) for name in PROMPTS]
    for answer in both:
        with pytest.raises(Overloaded):
            await answer
    await worker.inspect(lambda manager: None)
    assert "illegal memory access" in (worker.failure or "")
    # CUDA answers every later call with the same error, so a good forward pass changes nothing.
    monkeypatch.undo()
    with pytest.raises(Overloaded, match="start the server again"):
        await ask(worker, "good", "later")


@pytest.mark.parametrize(
    "where", ["kvproxy.engine.output_processor.sample", "kvproxy.engine.scheduler.sequence.score_tokens"]
)
async def test_a_device_that_dies_while_tokens_are_drawn_is_dead_too(
    where: str, worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, raising("CUDA error: device-side assert triggered"))
    with pytest.raises(Overloaded):
        await ask(worker, "good", "one", prompt_logprobs=1)
    await worker.inspect(lambda manager: None)
    assert "device-side assert" in (worker.failure or "")


async def test_who_cannot_even_be_queued_is_told(worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(worker._engine, "add_request", raising("out of luck"))
        with pytest.raises(Overloaded, match="failed on this request"):
            await asyncio.wait_for(ask(worker, "bad", "one"), 20)
    assert await ask(worker, "good", "two") == expected("good")


async def test_a_refused_twin_does_not_take_the_first_with_it(worker: AsyncLLM) -> None:
    first = ask(worker, "good", "twin")
    with pytest.raises(KvproxyError, match="in use"):
        await ask(worker, "bad", "twin")
    assert await first == expected("good")


async def test_events_that_cannot_be_published_cost_no_answer(
    worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        publish = staticmethod(raising("no socket"))
        publish_all = publish

        def close(self) -> None: ...

    worker._engine.manager.pool.record_events = True
    monkeypatch.setattr(worker._thread, "publisher", Broken())
    assert await ask(worker, "good", "one") == expected("good")
    assert worker.failure is None


async def test_a_thread_that_ends_is_known_and_leaves_nobody_waiting(
    worker: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineCore, "fail_all", raising("broken twice"))
    monkeypatch.setattr(Scheduler, "schedule", raising("broken"))
    with pytest.raises(Overloaded):
        await asyncio.wait_for(ask(worker, "good", "one"), 10)
    assert "broken twice" in (worker.failure or "")


def test_device_errors_are_told_from_others() -> None:
    assert is_device_error(torch.AcceleratorError("CUDA error: device-side assert triggered"))
    assert is_device_error(RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"))
    assert not is_device_error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not is_device_error(RuntimeError("shape mismatch"))
    assert not is_device_error(ValueError("CUDA error"))
