"""Lost, late, and repeated batches: the mirror reaches the publisher's state."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.sequencer import MAX_REPLAY_ATTEMPTS, Sequencer
from tests.upstreams.mirror.publisher import Model


class Follower:
    """A sequencer whose replays are answered from a model's buffer."""

    def __init__(self, model: Model, replayable: bool = True) -> None:
        self.model = model
        self.state = MirrorState()
        self.sequencer = Sequencer(self.state, has_replay=replayable)

    def send(self, *events: Any) -> None:
        """Publish a batch that arrives."""
        self.sequencer.on_batch(*self.model.publish(*events))

    def replay(self, fail_after: int | None = None, between: Any = lambda: None) -> None:
        """Answer the requested replay; `between` runs during the replay."""
        start = self.sequencer.begin_replay()
        answer = [(number, payload) for number, payload in self.model.buffer if number >= start]
        between()
        for index, (number, payload) in enumerate(answer):
            if index == fail_after:
                self.sequencer.fail_replay()
                return
            self.sequencer.on_replayed_batch(number, payload)
        self.sequencer.end_replay()

    def settle(self) -> None:
        for _ in range(50):
            if self.sequencer.replay_from is None:
                return
            self.replay()
        raise AssertionError("replay requests do not end")

    def held(self) -> Counter[Any]:
        return Counter(
            {digest: block.copies for pool in self.state.pools.values() for digest, block in pool.blocks.items()}
        )


GARBAGE = [b"", b"\xc1", b"\x93\x01\x91\xa1x\x00"]
blocks = st.integers(1, 12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.lists(blocks, min_size=1, max_size=3)),
        st.tuples(st.just("remove"), st.integers(0, 5)),
        st.tuples(st.just("clear"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("deliver"), st.integers(0, 20)),
        st.tuples(st.just("lose"), st.integers(0, 20)),
        st.tuples(st.just("repeat"), st.integers(0, 20)),
        st.tuples(st.just("replay"), st.integers(0, 20)),
        st.tuples(st.just("broken replay"), st.integers(0, 3)),
        st.tuples(st.just("damage"), st.tuples(st.integers(0, 20), st.sampled_from(GARBAGE))),
        st.tuples(st.just("discard"), st.just(0)),
        st.tuples(st.just("set back the clock"), st.integers(1, 100)),
    ),
    max_size=60,
)


def play(steps: list[tuple[str, Any]], follower: Follower, model: Model) -> None:
    """Deliver batches late, damaged, twice, or never; a new run connects before its first batch, as in `EventSubscriber`."""
    undelivered: list[tuple[int, int, bytes]] = []
    sent: list[tuple[int, int, bytes]] = []
    run = noticed = 0

    def deliver(place: int, damaged: bytes | None = None) -> None:
        if undelivered:
            of, number, payload = undelivered.pop(place % len(undelivered))
            if of > noticed:
                notice()
            follower.sequencer.on_batch(number, payload if damaged is None else damaged)

    def notice() -> None:
        nonlocal noticed
        follower.sequencer.on_connected()
        noticed = run

    for action, value in steps:
        event: Any = None
        if action == "store":
            event = model.store(value)
        elif action == "remove" and model.held:
            event = model.remove([sorted(model.held)[value % len(model.held)]])
        elif action == "clear":
            event = model.clear()
        elif action == "restart":
            model.restart()
            run += 1
        elif action == "deliver":
            if noticed < run and value % 2:
                notice()
            deliver(value)
        elif action == "damage" and undelivered:
            place, payload = value
            deliver(place, payload)
        elif action == "discard":
            follower.sequencer.discard_state()
        elif action == "set back the clock":
            model._clock -= value
        elif action == "lose" and undelivered:
            undelivered.pop(value % len(undelivered))
        elif action == "repeat" and sent:
            undelivered.append(sent[value % len(sent)])
        elif action == "replay" and follower.sequencer.replay_from is not None:
            follower.replay(between=lambda value=value: deliver(value))
        elif action == "broken replay" and follower.sequencer.replay_from is not None:
            follower.replay(fail_after=value)
        if event is not None:
            undelivered.append((run, *model.publish(event)))
            sent.append(undelivered[-1])
    while undelivered:
        deliver(0)
    if noticed < run:
        notice()
    follower.settle()
    follower.sequencer.on_idle()
    follower.settle()


@given(steps=steps, positional=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_disorder_ends_in_the_publishers_state(steps: list[tuple[str, Any]], positional: bool) -> None:
    model = Model(positional)
    follower = Follower(model)
    follower.sequencer.on_connected()
    play(steps, follower, model)
    assert follower.held() == model.held
    assert follower.sequencer.complete
    # After a discarded state, a replay may begin with the removal of a block that the mirror no longer has.
    assert follower.state.unknown_removals == 0 or ("discard", 0) in steps


@given(steps=steps, buffer=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_a_short_replay_buffer_never_leads_to_blocks_that_do_not_exist(
    steps: list[tuple[str, Any]], buffer: int
) -> None:
    model = Model(buffer=buffer)
    follower = Follower(model)
    follower.sequencer.on_connected()
    play(steps, follower, model)
    assert follower.held() <= model.held
    if follower.sequencer.complete:
        assert follower.held() == model.held


@pytest.mark.parametrize(
    ("reconnects", "start", "batches", "replays"),
    [(False, 4, 3, 2), (False, 4, 5, 2), (False, 4, 9, 2), (True, 0, 3, 1)],
)
def test_a_new_run_is_replayed_from_its_start(reconnects: bool, start: int, batches: int, replays: int) -> None:
    model = Model()
    follower = Follower(model)
    for number in range(5):
        follower.send(model.store([number]))
    model.restart()
    for number in range(batches):
        model.publish(model.store([10 + number]))
    follower.sequencer.on_connected() if reconnects else follower.sequencer.on_idle()
    assert follower.sequencer.replay_from == start
    follower.settle()
    assert follower.held() == model.held
    assert follower.sequencer.complete
    counts = follower.sequencer.counts
    assert (counts.restarts, counts.replays, counts.losses) == (1, replays, 0)


def test_batches_and_gaps_are_counted() -> None:
    model = Model()
    follower = Follower(model, replayable=False)
    counts = follower.sequencer.counts
    batches = [model.publish(model.store([number])) for number in range(6)]
    for place in (0, 0, 2, 3, 5):
        follower.sequencer.on_batch(*batches[place])
    assert (counts.batches, counts.duplicates, counts.gaps, counts.losses, counts.malformed) == (4, 1, 2, 2, 0)
    assert (counts.restarts, counts.replays) == (0, 0)


@pytest.mark.parametrize("payload", [None, *GARBAGE])
def test_without_replay_a_lost_or_malformed_batch_clears_the_mirror(payload: bytes | None) -> None:
    model = Model()
    follower = Follower(model, replayable=False)
    for number in range(200):
        of, batch = model.publish(model.store([number]))
        if number != 10:
            follower.sequencer.on_batch(of, batch)
        elif payload is not None:
            follower.sequencer.on_batch(of, payload)
            assert follower.held() == Counter()
    assert not follower.sequencer.complete
    counts = follower.sequencer.counts
    assert (counts.losses, counts.malformed) == ((1, 0) if payload is None else (counts.losses, 1))
    assert set(follower.held()) == set(range(11, 200))
    follower.send(model.clear())
    assert follower.sequencer.complete


def test_repeated_replay_failures_count_as_a_loss() -> None:
    model = Model()
    follower = Follower(model)
    follower.send(model.store([1]))
    model.publish(model.store([2]))
    follower.send(model.store([3]))
    for number in range(4, 8):
        assert follower.sequencer.replay_from is not None
        follower.sequencer.begin_replay()
        follower.send(model.store([number]))
        follower.sequencer.fail_replay()
        if not follower.sequencer.complete:
            break
    assert number == 3 + MAX_REPLAY_ATTEMPTS
    assert follower.sequencer.counts.losses == 1
    assert follower.held() <= model.held
    follower.sequencer.on_idle()
    follower.settle()
    assert follower.held() == model.held
    assert follower.sequencer.complete


@pytest.mark.parametrize("payload", GARBAGE)
def test_a_malformed_batch_is_replayed_once_and_then_skipped(payload: bytes) -> None:
    model = Model()
    follower = Follower(model)
    follower.send(model.store([1]))
    model.buffer.append((1, payload))
    model.sequence = 2
    follower.sequencer.on_batch(1, payload)
    follower.send(model.store([5]))
    asked = 0
    while follower.sequencer.replay_from is not None:
        assert (asked := asked + 1) < 5, "replay requests do not end"
        follower.replay()
    # The malformed batch may have removed earlier blocks.
    assert follower.held() == Counter([5])
    assert not follower.sequencer.complete
    follower.sequencer.on_idle()
    assert follower.sequencer.replay_from == 2, "the whole buffer was replayed already"
    follower.settle()
    assert follower.held() == Counter([5])
    # A second malformed batch causes no replay, which would repeat the first one.
    model.buffer.append((3, payload))
    model.sequence = 4
    follower.sequencer.on_batch(3, payload)
    assert follower.sequencer.replay_from is None
    assert follower.held() == Counter()
    follower.send(model.clear(), model.store([6]))
    assert follower.held() == Counter([6])
    assert follower.sequencer.complete


def test_without_replay_a_new_connection_clears_the_mirror() -> None:
    model = Model()
    follower = Follower(model, replayable=False)
    follower.sequencer.on_connected()
    for number in range(3):
        follower.send(model.store([number]))
    assert follower.sequencer.complete
    follower.sequencer.on_connected()
    assert (follower.held(), follower.sequencer.complete) == (Counter(), False)
    # Either the same process continues, or another one starts.
    follower.send(model.store([7]))
    assert (follower.held(), follower.sequencer.complete) == (Counter([7]), False)
    follower.sequencer.on_connected()
    model.restart()
    follower.send(model.store([9]))
    assert (follower.held(), follower.sequencer.complete) == (Counter([9]), True)
