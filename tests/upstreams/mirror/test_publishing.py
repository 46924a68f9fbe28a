"""What our publisher sends, read by a consumer that knows only vLLM's description of the wire."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import zmq

from kvproxy.blocks.block_hash import event_hash
from kvproxy.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvproxy.engine.event_publisher import KVEventPublisher
from kvproxy.errors import SettingsError
from kvproxy.upstreams.mirror.mirror import EventSubscriber
from tests.polling import until_async

A, B = b"\x01" * 32, b"\x02" * 32
STORED = BlockStored((A, B), None, (1, 2, 3, 4), 2)
LOCAL = "tcp://127.0.0.1:*"
_PATIENCE_MS = 300_000


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def replay(context: "zmq.Context[Any]", address: str, start: int) -> list[list[bytes]]:
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(address)
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        answer = []
        while not answer or answer[-1][2] != b"\xff" * 8:
            assert dealer.poll(_PATIENCE_MS)
            answer.append(dealer.recv_multipart())
        return answer


def test_frames_numbers_and_replay(context: "zmq.Context[Any]") -> None:
    publisher = KVEventPublisher(LOCAL, LOCAL, topic="kv")
    try:
        with context.socket(zmq.SUB) as socket:
            socket.connect(publisher.endpoint)
            socket.subscribe(b"kv")
            publisher.publish([AllBlocksCleared()])
            time.sleep(0.3)
            publisher.publish([STORED])
            publisher.publish([BlockRemoved((A,)), AllBlocksCleared()])
            frames = []
            while len(frames) < 2 or frames[-1][1] != (2).to_bytes(8, "big"):
                assert socket.poll(_PATIENCE_MS)
                frames.append(socket.recv_multipart())
        topic, number, payload = frames[-2]
        assert (topic, number) == (b"kv", (1).to_bytes(8, "big"))
        moment, events, rank = msgpack.unpackb(payload)
        assert abs(moment - time.time()) < 60
        assert rank == 0
        assert events == [
            {
                "type": "BlockStored",
                "block_hashes": [event_hash(A), event_hash(B)],
                "parent_block_hash": None,
                "token_ids": [1, 2, 3, 4],
                "block_size": 2,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        ]
        assert publisher.replay is not None
        answer = replay(context, publisher.replay, 1)
        assert answer == [[b"", *frames[-2]], [b"", *frames[-1]], [b"", b"", b"\xff" * 8, b""]]
        assert replay(context, publisher.replay, 99) == [[b"", b"", b"\xff" * 8, b""]]
    finally:
        publisher.close()


async def test_a_subscriber_too_late_for_the_buffer_gets_a_snapshot(context: "zmq.Context[Any]") -> None:
    asked = 0

    def on_short() -> None:
        nonlocal asked
        asked += 1
        publisher.publish([AllBlocksCleared(), STORED, BlockStored((bytes(32),), B, (5, 6), 2)])

    publisher = KVEventPublisher(LOCAL, LOCAL, buffer=3, request_snapshot=on_short)
    publisher.publish([STORED])
    for number in range(3, 10):
        publisher.publish([BlockStored((bytes([number]) * 32,), None, (7, number), 2)])
        publisher.publish([BlockRemoved((bytes([number]) * 32,))])
    publisher.publish([BlockStored((bytes(32),), B, (5, 6), 2)])
    address = publisher.replay
    assert address is not None
    # A subscriber is late once the thread has sent the last of the 16 batches.
    await until_async(lambda: len(replay(context, address, 15)) == 2)
    late = [EventSubscriber(publisher.endpoint, publisher.replay, idle=3.0) for _ in range(2)]
    try:
        for subscriber in late:
            await subscriber.start()
            await until_async(lambda subscriber=subscriber: subscriber.sequencer.complete and subscriber.state.pools)
            (pool,) = subscriber.state.pools.values()
            held = Counter({digest: block.copies for digest, block in pool.blocks.items()})
            assert held == Counter(map(event_hash, (A, B, bytes(32))))
        # The second found the whole content in the buffer.
        assert asked == 1
    finally:
        for subscriber in late:
            await subscriber.close()
        publisher.close()


def test_an_address_in_use_is_refused() -> None:
    first = KVEventPublisher(LOCAL)
    try:
        with pytest.raises(SettingsError, match="cannot publish KV events"):
            KVEventPublisher(first.endpoint)
    finally:
        first.close()
