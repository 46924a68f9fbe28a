"""Publishes KV events over ZeroMQ in the format of vLLM's publisher.

A PUB socket sends a batch as `[topic, sequence number (u64, big-endian), payload]`. The payload is msgpack of
`[time, events, rank]`. A ROUTER socket responds to `[b"", first number]` with the buffered batches from that number on,
then `[b"", b"", 8 bytes 0xff, b""]`. If that batch is no longer buffered, the engine also publishes events for all cached blocks.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import zmq

from kvproxy.blocks.events import AllBlocksCleared, KVEvent
from kvproxy.errors import SettingsError

_END = b"\xff" * 8
_BIND_HOSTS = ("*", "0.0.0.0", "[::]", "127.", "localhost", "[::1]")


class KVEventPublisher:
    """Publishes events on a thread that owns the sockets. A socket binds if its host is `*` or this machine, else it connects."""

    def __init__(
        self,
        endpoint: str,  # of the PUB socket
        replay: str | None = None,  # endpoint of the ROUTER socket; None disables replays
        *,
        topic: str = "",
        buffer: int = 10_000,  # number of batches kept for replay
        request_snapshot: Callable[[], None] = lambda: None,  # makes the engine publish all cached blocks
    ) -> None:
        self._topic = topic.encode()
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=buffer)
        self._queue: queue.SimpleQueue[Sequence[KVEvent] | None] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._next_number = 0
        self._request_snapshot = request_snapshot
        # The stream is complete from this batch on: the first batch or the last snapshot.
        self._complete_from = 0
        self._snapshot_requested = False
        try:
            self._pub = self._open_socket(zmq.PUB, endpoint)
            self._router = self._open_socket(zmq.ROUTER, replay) if replay else None
            self._wake_sender = self._open_socket(zmq.PAIR, "inproc://wake")
            self._wake_receiver = self._context.socket(zmq.PAIR)
            self._wake_receiver.connect("inproc://wake")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise SettingsError(f"cannot publish KV events on {endpoint} ({error}): choose another address") from None
        self.endpoint: str = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay: str | None = self._router.getsockopt_string(zmq.LAST_ENDPOINT) if self._router else None
        self._thread = threading.Thread(target=self._run, name="kvproxy-kv-events", daemon=True)
        self._thread.start()

    def _open_socket(self, kind: int, endpoint: str) -> Any:
        socket = self._context.socket(kind)
        socket.set_hwm(100_000)
        socket.setsockopt(zmq.LINGER, 0)
        host = endpoint.partition("://")[2]
        if host.startswith(_BIND_HOSTS) or not endpoint.startswith("tcp://"):
            socket.bind(endpoint)
        else:
            socket.connect(endpoint)
        return socket

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Enqueue a batch of events. Only one thread may call this method."""
        self._queue.put(events)
        self._wake_sender.send(b"")

    def close(self) -> None:
        self._queue.put(None)
        self._wake_sender.send(b"")
        self._thread.join(timeout=5)
        self._context.destroy(linger=200)

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._wake_receiver, self._router):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._router in ready:
                self._send_replay()
            if self._wake_receiver in ready:
                self._wake_receiver.recv()
                events = self._queue.get()
                if events is None:
                    return
                self._send(events)

    def _send(self, events: Sequence[KVEvent]) -> None:
        payload = msgpack.packb([time.time(), [event.as_wire() for event in events], 0])
        number = self._next_number.to_bytes(8, "big")
        if isinstance(events[0], AllBlocksCleared):
            self._complete_from, self._snapshot_requested = self._next_number, False
        # Buffer before sending: a subscriber may request a replay immediately.
        self._buffer.append((number, payload))
        self._pub.send_multipart([self._topic, number, payload])
        self._next_number += 1

    def _send_replay(self) -> None:
        assert self._router is not None
        frames = self._router.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            return
        client, _, start = frames
        first = int.from_bytes(self._buffer[0][0], "big") if self._buffer else 0
        if first > max(self._complete_from, int.from_bytes(start, "big")) and not self._snapshot_requested:
            self._snapshot_requested = True
            self._request_snapshot()
        for number, payload in self._buffer:
            if number >= start:
                self._router.send_multipart([client, b"", self._topic, number, payload])
        self._router.send_multipart([client, b"", b"", _END, b""])
