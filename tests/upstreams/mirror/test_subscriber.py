"""Event streams over real sockets: replays, restarts, and errors."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from kvproxy.upstreams.mirror.mirror import EventSubscriber, Mirror, expand_endpoint
from tests.polling import until_async
from tests.upstreams.mirror.publisher import Model, Sockets


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    with closing(Sockets(Model())) as sockets:
        yield sockets


def restarted(sockets: Sockets) -> Sockets:
    """Return a new publisher at the endpoints of a closed one."""
    events, replay = (int(address.rsplit(":", 1)[1]) for address in (sockets.events, sockets.replay))
    return Sockets(Model(), ports=(events, replay))


@contextlib.asynccontextmanager
async def subscribe(sockets: Sockets, **options: Any) -> AsyncIterator[EventSubscriber]:
    subscriber = EventSubscriber(sockets.events, sockets.replay, **options)
    await subscriber.start()
    try:
        yield subscriber
    finally:
        await subscriber.close()


@contextlib.asynccontextmanager
async def started(mirror: Mirror) -> AsyncIterator[Mirror]:
    await mirror.start()
    try:
        yield mirror
    finally:
        await mirror.close()


def held(subscriber: EventSubscriber) -> Counter[Any]:
    pools = subscriber.state.pools.values()
    return Counter({digest: block.copies for pool in pools for digest, block in pool.blocks.items()})


def shown(mirror: Mirror) -> set[Any]:
    return {name for pool in mirror.state().pools.values() for name in pool.blocks}


async def test_ranks_have_separate_pools() -> None:
    with closing(Sockets(Model())) as first, closing(Sockets(Model())) as second:
        ranks = (first, second)
        for rank, sockets in enumerate(ranks):
            sockets.send(sockets.model.store([1, 2], tokens=[5, 6, 7, 8]), rank=rank)
            sockets.send(sockets.model.store([10 + rank]), rank=rank)
        mirror = Mirror(first.events, first.replay)
        mirror.subscribers.append(EventSubscriber(second.events, second.replay))
        async with started(mirror):
            pairs = list(zip(mirror.subscribers, ranks, strict=True))
            await until_async(lambda: all(held(one) == two.model.held for one, two in pairs))
            assert {key.rank for key in mirror.state().pools} == {0, 1}
            assert mirror.report().cached == 6
            assert mirror.is_complete


BAD = {"type": "BlockStored", "block_hashes": 7, "parent_block_hash": None, "token_ids": [1], "block_size": 1}


async def test_a_malformed_batch_is_logged_and_skipped(sockets: Sockets, caplog: pytest.LogCaptureFixture) -> None:
    async with subscribe(sockets) as subscriber:
        sockets.send(sockets.model.store([1]))
        await until_async(lambda: held(subscriber) == sockets.model.held)
        sockets.send(BAD)
        await until_async(lambda: subscriber.sequencer.counts.malformed > 0)
        # It is replayed once, and later batches are applied.
        sockets.send(sockets.model.store([2]))
        await until_async(lambda: held(subscriber) == Counter([2]) and subscriber.sequencer.replay_from is None)
        status = subscriber.status()
        assert not status.complete
        assert status.error == "batch 1 cannot be decoded: block_hashes is not a list of hashes"
        lines = [record.getMessage() for record in caplog.records]
        assert [line for line in lines if "decoded" in line] == [f"KV events of {sockets.events}: {status.error}"]
        sockets.send(sockets.model.clear(), sockets.model.store([3]))
        await until_async(lambda: held(subscriber) == sockets.model.held)
        assert subscriber.status().complete


async def test_tasks_survive_unexpected_errors(
    sockets: Sockets, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.upstreams.mirror.mirror.RESTART_DELAY_SECONDS", 0.01)
    broken = {"apply", "on_idle"}

    def breaks(target: object, name: str) -> None:
        real: Callable[..., None] = getattr(target, name)

        def call(*arguments: object) -> None:
            if name in broken:
                broken.discard(name)
                raise RuntimeError(f"{name} broke")
            real(*arguments)

        monkeypatch.setattr(target, name, call)

    async with subscribe(sockets, idle=0.05) as subscriber:
        breaks(subscriber.state, "apply")
        breaks(subscriber.sequencer, "on_idle")
        sockets.send(sockets.model.store([1]))
        await until_async(lambda: not broken)
        sockets.send(sockets.model.store([2]))
        await until_async(lambda: held(subscriber) == sockets.model.held and subscriber.status().complete)
        # The first error is logged with its traceback, and the second is not logged within a minute.
        (record,) = [record for record in caplog.records if "broke" in record.getMessage()]
        assert record.exc_info is not None
        assert "broke" in (subscriber.status().error or "")


async def test_malformed_messages_are_counted(sockets: Sockets) -> None:
    async with subscribe(sockets) as subscriber:
        for frames in ([b"only a topic"], [b"", b"short", b"x"], [b"", bytes(8), b"x", b"one too many"]):
            before = subscriber.status().malformed

            def is_counted(frames: list[bytes] = frames, before: int = before) -> bool:
                # Messages before the subscription reaches the publisher are lost.
                sockets.send_frames(frames)
                return subscriber.status().malformed > before

            await until_async(is_counted)
        sockets.send(sockets.model.store([1]))
        await until_async(lambda: held(subscriber) == sockets.model.held)


@pytest.mark.parametrize("replays", [True, False], ids=["replay", "no replay"])
async def test_blocks_of_a_disconnected_engine_are_not_shown(replays: bool) -> None:
    first = Sockets(Model())
    async with started(Mirror(first.events, first.replay if replays else None)) as mirror:
        (subscriber,) = mirror.subscribers
        await until_async(lambda: subscriber.is_connected)

        def follows(sockets: Sockets, first_name: int) -> bool:
            # Events before the subscription reaches the publisher are lost.
            sockets.send(sockets.model.store([first_name + sockets.model.sequence]))
            seen.update(shown(mirror))
            return bool(shown(mirror))

        seen: set[Any] = set()
        await until_async(lambda: follows(first, 0))
        first.close()
        await until_async(lambda: not subscriber.is_connected)
        assert (shown(mirror), mirror.report().cached, mirror.is_complete) == (set(), None, False)
        seen.clear()
        with closing(restarted(first)) as second:
            await until_async(lambda: follows(second, 1000))
            assert all(name >= 1000 for name in seen | shown(mirror)), "a block of the first engine was shown"


async def test_a_new_connection_to_the_same_process_needs_one_replay(sockets: Sockets) -> None:
    async with started(Mirror(sockets.events, sockets.replay)) as mirror:
        (subscriber,) = mirror.subscribers
        sockets.send(sockets.model.store([1, 2]))
        await until_async(lambda: shown(mirror) == {1, 2})
        subscriber.sequencer.on_connected()
        assert shown(mirror) == set()
        subscriber._replay_requested.set()
        await until_async(lambda: shown(mirror) == {1, 2})
        assert (subscriber.status().restarts, subscriber.status().losses, mirror.is_complete) == (0, 0, True)


async def test_a_subscriber_can_be_closed_in_the_moment_of_an_event(sockets: Sockets) -> None:
    """`asyncio.wait_for` of Python 3.11 loses a cancellation in this moment."""
    subscriber = EventSubscriber(sockets.events)
    await subscriber.start()
    await until_async(lambda: subscriber.is_connected)
    await asyncio.sleep(0.05)
    subscriber._replay_requested.set()
    async with asyncio.timeout(30):
        await subscriber.close()


def test_an_endpoint_expands_to_its_sockets() -> None:
    assert expand_endpoint("tcp://host:5557-5557") == ["tcp://host:5557"]
    assert expand_endpoint("tcp://host:5557-5559") == ["tcp://host:5557", "tcp://host:5558", "tcp://host:5559"]
    for single in ("tcp://host:5557", "tcp://host:65535", "ipc:///run/events", "inproc://events"):
        assert expand_endpoint(single) == [single]


@pytest.mark.parametrize(
    ("endpoints", "message"),
    [
        ("|host:5557|tcp://host|tcp://*:1|udp://host:1|ipc://|tcp://host:5557-", "is not an endpoint: use tcp://"),
        ("tcp://host:5558-5557|tcp://host:65536|tcp://host:65535-65536|tcp://host:1000-2024", "invalid range of ports"),
    ],
)
def test_an_invalid_endpoint_is_refused(endpoints: str, message: str) -> None:
    for endpoint in endpoints.split("|"):
        with pytest.raises(ValueError, match=message):
            expand_endpoint(endpoint)


def test_each_publisher_has_its_own_replay_socket() -> None:
    mirror = Mirror("tcp://host:1-2", "tcp://host:3-4")
    assert [(each.endpoint, each._replay) for each in mirror.subscribers] == [
        ("tcp://host:1", "tcp://host:3"),
        ("tcp://host:2", "tcp://host:4"),
    ]
    with pytest.raises(ValueError, match="has 2 sockets and 'tcp://host:3' has 1"):
        Mirror("tcp://host:1-2", "tcp://host:3")
