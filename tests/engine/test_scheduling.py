"""Scheduling: priorities, equal shares between tenants, preemption, and reported times."""

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from kvproxy.apis.codecs.generation import GenerationRequest, SamplingParams, Timing
from kvproxy.engine.scheduler.scheduler import RequestQueue
from tests.blocks.driver import Clock
from tests.engine.driven import Driven
from tests.engine.models import VOCABULARY, random_model, reference

chance = random.Random(3)


def prompt(length: int) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(length)]


def test_what_is_more_urgent_is_answered_first() -> None:
    driven = Driven(max_num_seqs=1)
    for number, priority in enumerate((5, 0, -1, 5, 0)):
        driven.submit(f"{priority}.{number}", prompt(20), 4, queue_priority=priority)
    driven.run()
    assert driven.done == ["-1.2", "0.1", "0.4", "5.0", "5.3"]


def test_tenants_get_equal_shares_of_tokens_whatever_the_size_of_their_requests() -> None:
    driven = Driven(max_num_seqs=2)
    for number in range(30):
        driven.submit(f"large{number}", prompt(60), 8, tenant="large")
        for part in range(3):
            driven.submit(f"small{number}.{part}", prompt(20), 3, tenant="small")
    while len(driven.done) < 50:
        driven.step()
    large, small = (
        sum(len(tokens) for id, tokens in driven.tokens.items() if id.startswith(size)) for size in ("large", "small")
    )
    large, small = large / 8 * 76, small / 3 * 26
    assert 0.8 < large / small < 1.25


def test_idling_earns_no_claim() -> None:
    driven = Driven(max_num_seqs=1)
    for number in range(8):
        driven.submit(f"a{number}", prompt(30), 4, tenant="a")
    while len(driven.done) < 6:
        driven.step()
    for number in range(6):
        driven.submit(f"b{number}", prompt(30), 4, tenant="b")
    driven.submit("a-late", prompt(30), 4, tenant="a")
    driven.run()
    assert driven.done.index("a-late") < len(driven.done) - 2


def test_few_tenants_without_requests_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.engine.scheduler.scheduler.MAX_TENANTS", 10)
    driven = Driven(max_num_seqs=2)
    # With one request always unfinished, the queue is never empty.
    driven.submit("long", prompt(20), 400, tenant="long")
    for number in range(40):
        driven.submit(f"{number}", prompt(4), 1, tenant=f"tenant {number}")
        while f"{number}" not in driven.done:
            driven.step()
    assert len(driven.engine._scheduler.waiting._service) <= 11
    assert "long" in driven.engine._scheduler.waiting._service


def test_the_least_urgent_gives_way_and_every_answer_is_exact() -> None:
    model = random_model("llama")
    driven = Driven(num_blocks=27, max_num_seqs=4)
    prompts = {f"{number}": prompt(24) for number in range(6)}
    for number, (id, tokens) in enumerate(prompts.items()):
        driven.submit(id, tokens, 24, queue_priority=5 - number)
        for _ in range(3):
            driven.step()
    driven.run()
    for id, tokens in prompts.items():
        assert driven.tokens[f"{id}#0"] == reference(model, tokens, 24)
    assert driven.done.index("5") < driven.done.index("0")


def test_a_long_prompt_does_not_hold_up_the_answers_behind_it() -> None:
    driven = Driven(max_num_batched_tokens=16, max_num_seqs=4)
    for number in range(3):
        driven.submit(f"answer{number}", prompt(8), 40)
    for _ in range(6):
        driven.step()
    driven.submit("urgent", prompt(200), 4, queue_priority=-1)
    before = {id: len(tokens) for id, tokens in driven.tokens.items()}
    for _ in range(10):
        driven.step()
    # Each of them got a token in every step, while the prompt was computed 13 tokens at a time.
    assert {id: len(tokens) - before[id] for id, tokens in driven.tokens.items()} == dict.fromkeys(before, 10)
    assert "urgent#0" not in driven.tokens
    driven.run()
    assert len(driven.tokens["urgent#0"]) == 4


def test_a_step_never_has_more_sequences_than_it_may() -> None:
    driven = Driven(max_num_seqs=4, num_blocks=400)
    most = []
    forward = driven.engine._runner.execute_model
    driven.engine._runner.execute_model = lambda plan: most.append(len(plan)) or forward(plan)  # type: ignore[method-assign,func-returns-value]
    tokens = prompt(30)
    driven.submit("many", tokens, 8, n=11)
    driven.submit("one", prompt(20), 8)
    driven.run()
    assert max(most) == 4
    assert {tuple(driven.tokens[f"many#{index}"]) for index in range(11)} == {
        tuple(reference(random_model("llama"), tokens, 8))
    }


def test_a_line_forgets_who_left() -> None:
    driven = Driven()
    for number in range(50):
        driven.submit(f"r{number}", prompt(10), 4, tenant=f"t{number % 7}")
        if number % 3 == 0:
            driven.engine.abort(f"r{number}")
    driven.run()
    driven.submit("last", prompt(10), tenant="new")
    driven.run()
    line: RequestQueue = driven.engine._scheduler.waiting
    assert len(line) == len(line._num_live) == 0
    assert len(line._service) == 1


def sequence(id: str, tenant: str = "", *, rank: int = 0, own: int = 0) -> Any:
    request = GenerationRequest(id, (), SamplingParams(), tenant=tenant, queue_priority=rank, tenant_priority=own)
    return SimpleNamespace(request=request, arrival_time=time.perf_counter(), num_output_tokens=0)


def waiting(line: RequestQueue, *sequences: Any) -> None:
    for each in sequences:
        line.mark_unfinished(each)
        line.add(each)


def order(line: RequestQueue) -> list[str]:
    return [each.request.id for each in line]


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
    # The urgent request is first, and then the request that a tenant ranks first among its own.
    assert order(line) == ["5", "6", "1", "3", "2"]
    line.remove(first)
    line.add(first)
    assert order(line) == ["5", "6", "1", "3", "2"]
    for each in (urgent, own, first, third):
        line.remove(each)
    assert order(line) == ["2"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.now = 100.0
    monkeypatch.setattr("kvproxy.engine.scheduler.sequence.now", clock)
    return clock


def step_at(driven: Driven, clock: Clock, *moments: float) -> None:
    for clock.now in moments:
        driven.step()


def test_times_are_counted_from_the_request_on(clock: Clock) -> None:
    driven = Driven(max_num_batched_tokens=8)
    driven.submit("a", range(1, 21), 3, n=2)
    # The prompt takes three steps of 8, 8 and 4 tokens; the third gives both answers their first token.
    step_at(driven, clock, 105.0, 110.0, 120.0)
    assert [(piece.index, piece.timing) for piece in driven.pieces["a"]] == [(0, None), (1, None)]
    step_at(driven, clock, 130.0, 150.0)
    ended = {piece.index: piece.timing for piece in driven.pieces["a"] if piece.finish_reason}
    assert ended == dict.fromkeys((0, 1), Timing(queue=5.0, first_token=20.0, total=50.0))


def test_who_waits_for_a_place_is_queued_so_long_and_a_preemption_changes_nothing(clock: Clock) -> None:
    driven = Driven(max_num_seqs=1)
    for id in ("a", "b"):
        driven.submit(id, range(1, 21), 2)
    step_at(driven, clock, 101.0, 102.0, 107.0)
    (running,) = driven.engine._scheduler.running
    driven.engine._scheduler._preempt(running)
    step_at(driven, clock, 111.0, 113.0)
    assert driven.pieces["a"][-1].timing == Timing(1.0, 1.0, 2.0)
    assert driven.pieces["b"][-1].timing == Timing(7.0, 7.0, 11.0)
