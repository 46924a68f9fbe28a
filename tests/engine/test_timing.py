"""What an answer's last piece says of its time: what the histograms of waiting and first tokens are made of."""

import pytest

from kvproxy.engine.core import EngineCore
from kvproxy.generation import Delta, GenerationRequest, SamplingParams, Timing
from kvproxy.settings import EngineSettings
from tests.engine.tiered import tiny


class Clock:
    """Seconds that pass only when they are told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("kvproxy.engine.scheduler.sequence.now", clock)
    return clock


def engine(**settings: int) -> EngineCore:
    return EngineCore(tiny(), EngineSettings(**({"num_blocks": 50, "block_size": 4} | settings)))  # type: ignore[arg-type]


def request(id: str, count: int, n: int = 1) -> GenerationRequest:
    return GenerationRequest(id, tuple(range(1, 21)), SamplingParams(max_tokens=count, temperature=0.0, n=n))


def test_times_are_counted_from_the_request_on(clock: Clock) -> None:
    made, pieces = engine(max_num_batched_tokens=8), []
    made.add_request(request("a", 3, n=2), pieces.append)
    clock.now = 105.0
    # The prompt takes three steps of 8, 8 and 4 tokens; the third gives both answers their first token.
    for seconds in (105.0, 110.0, 120.0):
        clock.now = seconds
        made.step()
    assert [(piece.index, piece.timing) for piece in pieces] == [(0, None), (1, None)]
    for seconds in (130.0, 150.0):
        clock.now = seconds
        made.step()
    ended = {piece.index: piece.timing for piece in pieces if piece.finish_reason}
    assert ended == dict.fromkeys((0, 1), Timing(queue=5.0, first_token=20.0, total=50.0))


def test_who_waits_for_a_place_is_queued_so_long_and_a_preemption_changes_nothing(clock: Clock) -> None:
    made, last = engine(max_num_seqs=1), {}

    def keep(id: str, piece: Delta) -> None:
        last[id] = piece.timing

    for id in ("a", "b"):
        made.add_request(request(id, 2), lambda piece, id=id: keep(id, piece))  # type: ignore[misc]
    for seconds in (101.0, 102.0, 107.0):
        clock.now = seconds
        made.step()
    (running,) = made._scheduler.running
    made._scheduler._preempt(running)
    for seconds in (111.0, 113.0):
        clock.now = seconds
        made.step()
    assert last == {"a": Timing(1.0, 1.0, 2.0), "b": Timing(7.0, 7.0, 11.0)}
