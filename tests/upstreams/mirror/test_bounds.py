"""A publisher fills no memory and stops no request: numbers of blocks, lengths of names, held batches, sizes of messages."""

from typing import Any

import msgpack
import pytest
import zmq

from kvproxy.upstreams.mirror import apply_events, sequencer
from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import MAX_BLOCKS_OF_BATCH, EventDecodeError, decode_batch
from kvproxy.upstreams.mirror.mirror import MAX_MESSAGE_BYTES, Mirror
from kvproxy.upstreams.mirror.sequencer import Sequencer
from tests.polling import until_async
from tests.ports import free_port


def batch(*events: dict[str, Any]) -> bytes:
    payload: bytes = msgpack.packb({"ts": 1.0, "events": list(events)})
    return payload


def stored(hashes: list[Any], **fields: Any) -> dict[str, Any]:
    size = {"token_ids": [1] * len(hashes), "block_size": 1, "parent_block_hash": None}
    return {"type": "BlockStored", "block_hashes": hashes} | size | fields


@pytest.mark.parametrize(
    "event",
    [
        stored([b"x" * 65]),
        stored([1], parent_block_hash=b"x" * 10**6),
        stored([1], medium="m" * 500_000),
        stored([1], kv_cache_spec_kind="k" * 129),
        stored([1], lora_name="l" * 129),
        stored([1], extra_keys=[[1] * 257]),
        stored([1], extra_keys=[[[1] * 100, [2] * 100, [3] * 100]]),
        {"type": "BlockRemoved", "block_hashes": [b"x" * 65]},
        {"type": "BlockRemoved", "block_hashes": list(range(MAX_BLOCKS_OF_BATCH + 1))},
    ],
)
def test_oversized_fields_are_refused(event: dict[str, Any]) -> None:
    with pytest.raises(EventDecodeError):
        decode_batch(batch(event))


def test_a_long_extra_key_is_kept_as_its_digest() -> None:
    one, same, other = (
        decode_batch(batch(stored([1], extra_keys=[[text]]))).events[0] for text in ("a" * 1000, "a" * 1000, "b" * 1000)
    )
    assert one == same != other
    assert len(repr(one)) < 400


def test_a_publisher_fills_its_blocks_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_events, "MAX_BLOCKS", 100)
    state = MirrorState()
    for start in range(0, 1000, 10):
        state.apply(decode_batch(batch(stored(list(range(start, start + 10)), parent_block_hash=start - 1))))
    (pool,) = state.pools.values()
    assert list(pool.blocks) == list(range(902, 1000))
    assert (pool.num_copies, state.is_truncated) == (98, True)
    # Large blocks count by their tokens.
    state.apply(decode_batch(batch(stored([5000], token_ids=[1] * 800, block_size=800))))
    assert len(pool.blocks) == 47 + 1
    state.apply(decode_batch(batch({"type": "AllBlocksCleared"})))
    assert (pool.size, pool.num_copies, pool.children(None)) == (0, 0, [])


def test_a_publisher_fills_its_pools_to_the_bound() -> None:
    state = MirrorState()
    for number in range(2 * apply_events.MAX_POOLS):
        state.apply(decode_batch(batch(stored([number], medium=f"medium {number}"))))
    assert (len(state.pools), state.is_truncated) == (apply_events.MAX_POOLS, True)


def test_batches_held_during_a_replay_are_bounded_and_the_lost_ones_are_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payloads = [batch(stored([number])) for number in range(100)]
    monkeypatch.setattr(sequencer, "MAX_HELD_BYTES", 20 * len(payloads[0]))
    state = MirrorState()
    follower = Sequencer(state, has_replay=True)
    follower.on_connected()
    follower.begin_replay()
    for number, payload in enumerate(payloads):
        follower.on_batch(number, payload)
    assert len(follower._held) <= 20
    follower.end_replay()
    assert follower.next == len(follower._fingerprints) <= 20
    follower.on_batch(99, payloads[99])
    start = follower.begin_replay()
    for number in range(start, 100):
        follower.on_replayed_batch(number, payloads[number])
    follower.end_replay()
    (pool,) = state.pools.values()
    assert (len(pool.blocks), follower.complete) == (100, True)


async def test_a_message_beyond_the_limit_is_not_received_and_the_next_ones_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvproxy.upstreams.mirror.mirror._RECONNECT_SECONDS", 0.2)
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    publisher.bind(endpoint)
    mirror = Mirror(endpoint)
    await mirror.start()
    try:
        (subscriber,) = mirror.subscribers
        await until_async(lambda: subscriber.is_connected)
        publisher.send_multipart([b"", (0).to_bytes(8, "big"), batch(stored([1]))])
        await until_async(lambda: subscriber.sequencer.next == 1)
        publisher.send_multipart([b"", (1).to_bytes(8, "big"), b"x" * (MAX_MESSAGE_BYTES + 1)])
        await until_async(lambda: not subscriber.is_connected)
        await until_async(lambda: subscriber.is_connected)
        publisher.send_multipart([b"", (2).to_bytes(8, "big"), batch(stored([2]))])
        await until_async(lambda: subscriber.sequencer.next == 3)
        assert subscriber.sequencer.counts.malformed == 0
    finally:
        await mirror.close()
        context.destroy(linger=0)
