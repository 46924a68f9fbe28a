"""A confirmed reset clears the mirror at once, and earlier events stay ignored."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvproxy.mirror.mirror import Mirror
from kvproxy.mirror.pending_resets import MAX_BATCHES
from tests.mirror.publisher import Model


class Engine:
    """An engine that publishes a reset with its next step, as vLLM does, and its mirror without sockets."""

    def __init__(self, replay: str | None = "tcp://127.0.0.1:2") -> None:
        self.model = Model()
        self.mirror = Mirror("tcp://127.0.0.1:1", replay)
        self.sequencer = self.mirror.subscribers[0].sequencer
        self.undelivered: list[tuple[int, bytes]] = []
        self._unpublished: list[Any] = []

    def step(self, *events: Any) -> None:
        self.undelivered.append(self.model.publish(*self._unpublished, *events))
        self._unpublished.clear()

    def reset(self) -> None:
        self._unpublished.append(self.model.clear())

    def deliver(self, count: int = 1000) -> None:
        for _ in range(min(count, len(self.undelivered))):
            self.sequencer.on_batch(*self.undelivered.pop(0))

    def shown(self) -> set[Any]:
        return {name for pool in self.mirror.state().pools.values() for name in pool.blocks}

    def settle(self) -> None:
        """Answer the requested replay."""
        while self.sequencer.replay_from is not None:
            start = self.sequencer.begin_replay()
            for number, payload in list(self.model.buffer):
                if number >= start:
                    self.sequencer.on_replayed_batch(number, payload)
            self.sequencer.end_replay()


def test_events_of_an_engine_that_never_publishes_a_reset_count_again() -> None:
    engine = Engine()
    engine.step(engine.model.store([1]))
    engine.deliver()
    engine.mirror.confirm_reset(engine.mirror.mark_reset())
    for number in range(MAX_BATCHES):
        engine.step(engine.model.store([10 + number]))
    engine.deliver()
    assert engine.shown() == set()
    engine.step(engine.model.store([2]))
    engine.step(engine.model.store([3]))
    engine.deliver()
    assert engine.shown() == {2, 3}


def test_a_restarted_engine_has_nothing_to_clear() -> None:
    engine = Engine()
    engine.step(engine.model.store([1]))
    engine.deliver()
    engine.mirror.confirm_reset(engine.mirror.mark_reset())
    engine.model.restart()
    engine.sequencer.on_connected()
    engine.step(engine.model.store([2]))
    engine.deliver()
    engine.settle()
    engine.step(engine.model.store([3]))
    engine.deliver()
    assert engine.shown() == {2, 3}


def test_a_replay_after_a_reset_is_ignored_until_the_reset_is_published() -> None:
    engine = Engine()
    for number in range(5):
        engine.step(engine.model.store([number]))
    engine.deliver()
    engine.mirror.confirm_reset(engine.mirror.mark_reset())
    engine.reset()
    # The state is lost, and the whole buffer is from before the reset.
    engine.sequencer.discard_state()
    engine.sequencer.on_connected()
    engine.settle()
    assert engine.shown() == set()
    engine.step(engine.model.store([9]))
    engine.deliver()
    engine.settle()
    assert engine.shown() == {9}


def test_a_reset_during_a_replay_clears_the_mirror() -> None:
    engine = Engine()
    for number in range(MAX_BATCHES + 50):
        engine.step(engine.model.store([number]))
    engine.deliver()
    engine.sequencer.discard_state()
    engine.sequencer.on_connected()
    assert engine.sequencer.begin_replay() == 0
    for place, (number, payload) in enumerate(engine.model.buffer):
        if place == 5:
            engine.mirror.confirm_reset(engine.mirror.mark_reset())
        engine.sequencer.on_replayed_batch(number, payload)
    engine.sequencer.end_replay()
    assert engine.shown() == set()


def example_of(steps: str) -> Any:
    return example(steps.split())


@given(
    st.lists(
        st.sampled_from(["store", "remove", "deliver", "deliver", "request", "confirm", "reconnect", "lose"]),
        min_size=5,
        max_size=60,
    )
)
@settings(deadline=None)
# Batches from before the reset arrive before its confirmation, after it, or after its publication.
@example_of("store deliver request confirm store deliver store deliver")
@example_of("store store request confirm deliver deliver")
@example_of("store request store deliver deliver confirm store deliver")
def test_no_block_from_before_a_confirmed_reset_is_ever_shown(actions: list[str]) -> None:
    engine = Engine()
    mark: tuple[int, ...] | None = None
    requested_at = confirmed_at = 0
    for number, action in enumerate(actions, 1):
        if action == "store":
            engine.step(engine.model.store([number]))
        elif action == "remove" and engine.model.held:
            engine.step(engine.model.remove([min(engine.model.held)]))
        elif action == "deliver":
            engine.deliver(1)
        elif action == "request" and mark is None:
            mark = engine.mirror.mark_reset()
            engine.reset()
            requested_at = number
        elif action == "confirm" and mark is not None:
            engine.mirror.confirm_reset(mark)
            mark, confirmed_at = None, requested_at
        elif action == "reconnect":
            engine.sequencer.on_connected()
            engine.settle()
        elif action == "lose" and engine.undelivered:
            engine.undelivered.pop(0)
        assert all(shown > confirmed_at for shown in engine.shown())
    engine.step(engine.model.store([999]))
    engine.deliver()
    engine.sequencer.on_idle()
    engine.settle()
    assert engine.shown() == set(engine.model.held)
