"""Event streams over real sockets: replays, restarts, and errors."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from kvproxy.mirror.mirror import Mirror, expand_endpoint
from kvproxy.mirror.subscriber import LOG_INTERVAL, EventSubscriber, StreamLog
from tests.mirror.publisher import Model, Sockets


@pytest.fixture(params=[False, True], ids=["maps", "arrays"])
def publisher(request: pytest.FixtureRequest) -> Iterator[Sockets]:
    sockets = Sockets(Model(positional=request.param))
    yield sockets
    sockets.close()


def held(subscriber: EventSubscriber) -> Counter[Any]:
    pools = subscriber.state.pools.values()
    return Counter({digest: block.copies for pool in pools for digest, block in pool.blocks.items()})


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        await asyncio.sleep(0.01)


async def test_a_late_subscriber_receives_earlier_events(publisher: Sockets) -> None:
    for number in range(50):
        publisher.send(publisher.model.store([number]))
    publisher.send(publisher.model.store([7]), publisher.model.remove([3]))
    subscriber = EventSubscriber(publisher.events, publisher.replay)
    await subscriber.start()
    try:
        await until(lambda: held(subscriber) == publisher.model.held)
        assert subscriber.is_connected
        assert subscriber.sequencer.complete
        assert held(subscriber)[7] == 2
    finally:
        await subscriber.close()


async def test_lost_and_repeated_batches(publisher: Sockets) -> None:
    subscriber = EventSubscriber(publisher.events, publisher.replay, idle=0.2)
    await subscriber.start()
    try:
        publisher.send(publisher.model.store([1000]))
        await until(lambda: held(subscriber) == publisher.model.held)
        for number in range(60):
            publisher.send(publisher.model.store([number]), lost=number % 7 == 3)
            if number % 5 == 0:
                publisher.repeat(number)
        await until(lambda: held(subscriber) == publisher.model.held)
        publisher.send(publisher.model.remove([5]), lost=True)
        await until(lambda: held(subscriber) == publisher.model.held)
        assert subscriber.sequencer.complete
    finally:
        await subscriber.close()


async def test_a_restarted_engine_is_followed() -> None:
    first = Sockets(Model())
    ports = tuple(int(address.rsplit(":", 1)[1]) for address in (first.events, first.replay))
    subscriber = EventSubscriber(first.events, first.replay)
    await subscriber.start()
    try:
        for number in range(5):
            first.send(first.model.store([number]))
        await until(lambda: held(subscriber) == first.model.held)
        first.close()
        await until(lambda: not subscriber.is_connected)
        # The same number of batches as before: only their content differs.
        second = Sockets(Model(), ports=(ports[0], ports[1]))
        try:
            for number in range(5):
                second.send(second.model.store([100 + number]))
            await until(lambda: held(subscriber) == second.model.held)
            assert subscriber.sequencer.counts.restarts == 1
        finally:
            second.close()
    finally:
        await subscriber.close()


async def test_ranks_have_separate_pools() -> None:
    ranks = [Sockets(Model()) for _ in range(2)]
    subscribers = []
    try:
        for rank, sockets in enumerate(ranks):
            sockets.send(sockets.model.store([1, 2], tokens=[5, 6, 7, 8]), rank=rank)
            sockets.send(sockets.model.store([10 + rank]), rank=rank)
        mirror = Mirror(ranks[0].events, ranks[0].replay)
        mirror.subscribers.append(EventSubscriber(ranks[1].events, ranks[1].replay))
        await mirror.start()
        subscribers = mirror.subscribers
        await until(lambda: all(held(one) == two.model.held for one, two in zip(subscribers, ranks, strict=True)))
        assert {key.rank for key in mirror.state().pools} == {0, 1}
        assert mirror.report().cached == 6
        assert mirror.complete
    finally:
        for subscriber in subscribers:
            await subscriber.close()
        for sockets in ranks:
            sockets.close()


BAD = {"type": "BlockStored", "block_hashes": 7, "parent_block_hash": None, "token_ids": [1], "block_size": 1}


async def test_a_malformed_batch_is_logged_and_skipped(caplog: pytest.LogCaptureFixture) -> None:
    sockets = Sockets(Model())
    subscriber = EventSubscriber(sockets.events, sockets.replay)
    await subscriber.start()
    try:
        sockets.send(sockets.model.store([1]))
        await until(lambda: held(subscriber) == sockets.model.held)
        sockets.send(BAD)
        await until(lambda: subscriber.sequencer.counts.malformed > 0)
        # It is replayed once, and later batches are applied.
        sockets.send(sockets.model.store([2]))
        await until(lambda: held(subscriber) == Counter([2]) and subscriber.sequencer.replay_from is None)
        status = subscriber.status()
        assert not status.complete
        assert status.error == "batch 1 cannot be decoded: block_hashes is not a list of hashes"
        lines = [record.getMessage() for record in caplog.records]
        assert [line for line in lines if "cannot be decoded" in line] == [
            f"KV events of {sockets.events}: batch 1 cannot be decoded: block_hashes is not a list of hashes"
        ]
        sockets.send(sockets.model.clear(), sockets.model.store([3]))
        await until(lambda: held(subscriber) == sockets.model.held)
        assert subscriber.status().complete
    finally:
        await subscriber.close()
        sockets.close()


async def test_a_malformed_batch_in_a_replay_is_skipped() -> None:
    sockets = Sockets(Model())
    for event in (sockets.model.store([1]), BAD, sockets.model.store([2])):
        sockets.send(event)
    subscriber = EventSubscriber(sockets.events, sockets.replay, idle=0.05)
    await subscriber.start()
    try:
        await until(lambda: held(subscriber) == Counter([2]))
        replays = subscriber.sequencer.counts.replays
        await until(lambda: subscriber.sequencer.counts.replays > replays + 1)
        assert held(subscriber) == Counter([2])
        sockets.send(sockets.model.store([3]))
        await until(lambda: held(subscriber) == Counter([2, 3]))
    finally:
        await subscriber.close()
        sockets.close()


async def test_tasks_survive_unexpected_errors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.mirror.subscriber.RESTART_DELAY", 0.01)
    sockets = Sockets(Model())
    subscriber = EventSubscriber(sockets.events, sockets.replay, idle=0.05)
    broken = {"apply", "on_idle"}

    def breaks(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            if name in broken:
                broken.discard(name)
                raise RuntimeError(f"{name} broke")
            real(*arguments)

        return call

    monkeypatch.setattr(subscriber.state, "apply", breaks("apply", subscriber.state.apply))
    monkeypatch.setattr(subscriber.sequencer, "on_idle", breaks("on_idle", subscriber.sequencer.on_idle))
    await subscriber.start()
    try:
        sockets.send(sockets.model.store([1]))
        await until(lambda: not broken)
        sockets.send(sockets.model.store([2]))
        await until(lambda: held(subscriber) == sockets.model.held and subscriber.status().complete)
        # The first error is logged with its traceback, the second is counted.
        (record,) = [record for record in caplog.records if "broke" in record.getMessage()]
        assert record.exc_info is not None
        assert "broke" in (subscriber.status().error or "")
    finally:
        await subscriber.close()
        sockets.close()


async def test_malformed_messages_are_counted() -> None:
    sockets = Sockets(Model())
    subscriber = EventSubscriber(sockets.events, sockets.replay)
    await subscriber.start()
    try:
        for frames in ([b"only a topic"], [b"", b"short", b"x"], [b"", bytes(8), b"x", b"one too many"]):
            before = subscriber.status().malformed

            def told(frames: list[bytes] = frames, before: int = before) -> bool:
                # What is published before the subscription has reached the publisher is lost.
                sockets.send_frames(frames)
                return subscriber.status().malformed > before

            await until(told)
        sockets.send(sockets.model.store([1]))
        await until(lambda: held(subscriber) == sockets.model.held)
    finally:
        await subscriber.close()
        sockets.close()


async def test_if_one_endpoint_is_in_use_no_subscriber_starts() -> None:
    taken = Sockets(Model())
    port = int(taken.events.rsplit(":", 1)[1])
    mirror = Mirror(f"tcp://127.0.0.1:{port}")
    mirror.subscribers.append(EventSubscriber(f"tcp://*:{port}"))
    try:
        with pytest.raises(zmq.ZMQError):
            await mirror.start()
        assert [task for task in mirror.subscribers[0]._tasks if not task.done()] == []
    finally:
        taken.close()


def shown(mirror: Mirror) -> set[Any]:
    return {name for pool in mirror.state().pools.values() for name in pool.blocks}


@pytest.mark.parametrize("replays", [True, False], ids=["replay", "no replay"])
async def test_blocks_of_a_disconnected_engine_are_not_shown(replays: bool) -> None:
    first = Sockets(Model())
    ports = tuple(int(address.rsplit(":", 1)[1]) for address in (first.events, first.replay))
    mirror = Mirror(first.events, first.replay if replays else None)
    (subscriber,) = mirror.subscribers
    await mirror.start()
    try:
        await until(lambda: subscriber.is_connected)

        def told() -> bool:
            # What is published before the subscription has reached the publisher is lost.
            first.send(first.model.store([first.model.sequence]))
            return bool(shown(mirror))

        await until(told)
        first.close()
        await until(lambda: not subscriber.is_connected)
        assert (shown(mirror), mirror.report().cached, mirror.complete) == (set(), 0, False)
        second = Sockets(Model(), ports=(ports[0], ports[1]))
        seen: set[Any] = set()

        def follows() -> bool:
            seen.update(shown(mirror))
            second.send(second.model.store([1000 + second.model.sequence]))
            return bool(shown(mirror))

        try:
            await until(follows)
            # Blocks of the first engine were never shown.
            assert all(name >= 1000 for name in seen | shown(mirror))
        finally:
            second.close()
    finally:
        await mirror.close()


async def test_a_new_connection_to_the_same_process_needs_one_replay() -> None:
    sockets = Sockets(Model())
    mirror = Mirror(sockets.events, sockets.replay)
    (subscriber,) = mirror.subscribers
    await mirror.start()
    try:
        sockets.send(sockets.model.store([1, 2]))
        await until(lambda: shown(mirror) == {1, 2})
        subscriber.sequencer.on_connected()
        assert shown(mirror) == set()
        subscriber._replay_requested.set()
        await until(lambda: shown(mirror) == {1, 2})
        assert (subscriber.status().restarts, subscriber.status().losses, mirror.complete) == (0, 0, True)
    finally:
        await mirror.close()
        sockets.close()


def test_one_line_a_minute_counts_the_suppressed_ones(caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0]
    stream_log = StreamLog("tcp://engine:1", clock=lambda: now[0])
    assert stream_log.last_error is None
    for number in range(3):
        stream_log.warn(f"error {number}")
    now[0] += LOG_INTERVAL - 0.5
    stream_log.warn("one more")
    assert stream_log.last_error == "one more"
    assert [record.getMessage() for record in caplog.records] == ["KV events of tcp://engine:1: error 0"]
    for seconds in (0.5, LOG_INTERVAL):
        now[0] += seconds
        stream_log.warn("again", ValueError("x"))
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "KV events of tcp://engine:1: again (3 more since the last line)",
        "KV events of tcp://engine:1: again",
    ]
    assert caplog.records[1].exc_info is not None


@pytest.mark.parametrize(
    ("endpoint", "sockets"),
    [
        ("tcp://host:5557", ["tcp://host:5557"]),
        ("tcp://host:5557-5557", ["tcp://host:5557"]),
        ("tcp://*:5557-5559", ["tcp://*:5557", "tcp://*:5558", "tcp://*:5559"]),
        ("tcp://host:65535", ["tcp://host:65535"]),
        ("ipc:///run/events", ["ipc:///run/events"]),
        ("inproc://events", ["inproc://events"]),
    ],
)
def test_an_endpoint_expands_to_its_sockets(endpoint: str, sockets: list[str]) -> None:
    assert expand_endpoint(endpoint) == sockets


@pytest.mark.parametrize("endpoint", ["", "host:5557", "tcp://host", "udp://host:1", "ipc://", "tcp://host:5557-"])
def test_an_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is not an endpoint: use tcp://host:5557"):
        expand_endpoint(endpoint)


@pytest.mark.parametrize(
    "endpoint", ["tcp://host:5558-5557", "tcp://host:65536", "tcp://host:65535-65536", "tcp://host:1000-2024"]
)
def test_an_invalid_range_of_ports_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="invalid range of ports"):
        expand_endpoint(endpoint)


def test_each_publisher_has_its_own_replay_socket() -> None:
    mirror = Mirror("tcp://host:1-2", "tcp://host:3-4")
    assert [(each.endpoint, each._replay) for each in mirror.subscribers] == [
        ("tcp://host:1", "tcp://host:3"),
        ("tcp://host:2", "tcp://host:4"),
    ]
    with pytest.raises(ValueError, match="has 2 sockets and 'tcp://host:3' has 1"):
        Mirror("tcp://host:1-2", "tcp://host:3")
