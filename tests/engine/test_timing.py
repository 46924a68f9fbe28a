"""What an answer's last piece says of its time: what the histograms of waiting and first tokens are made of."""

import pytest

from kvproxy.generation import Timing
from tests.engine.driven import Driven


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
