"""Publishes the embedded engine's KV events as vLLM's ZeroMQ publisher does, so that routers made for vLLM can follow it.

PUB frames are `[topic, number (u64, big-endian), payload]`; the payload is msgpack of `[time, events, rank]`. A ROUTER
socket answers `[b"", first number]` with every batch that is still buffered, then `[b"", b"", ff x 8, b""]`.

Whoever asks for more than is buffered makes the engine publish its whole content once, as an ordinary batch that begins
with AllBlocksCleared: any consumer of the stream is right from there on.
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
from kvproxy.settings import EngineSettings

_END = b"\xff" * 8
_LOCAL = ("*", "0.0.0.0", "[::]", "127.", "localhost", "[::1]")


def create_publisher(settings: EngineSettings, on_short: Callable[[], None]) -> "KVEventPublisher | None":
    """The publisher that the settings ask for; None where they ask for none."""
    if settings.kv_events is None:
        return None
    return KVEventPublisher(
        settings.kv_events,
        settings.kv_replay,
        topic=settings.kv_topic,
        buffer=settings.kv_buffer,
        on_short=on_short,
    )


class KVEventPublisher:
    """Owns the sockets, and the thread that alone touches them once it runs.

    Args:
        endpoint: PUB address: bound where its host is `*` or this machine, else connected to.
        replay: ROUTER address, None for none.
        topic: first frame of each batch.
        buffer: batches kept for replay.
        on_short: called, on the publisher's thread, when a request reaches back further than the buffer: `publish_all` is
            to follow.

    Attributes:
        endpoint, replay: the addresses with the ports that they got.

    Raises:
        SettingsError: an address cannot be used.
    """

    def __init__(
        self,
        endpoint: str,
        replay: str | None = None,
        *,
        topic: str = "",
        buffer: int = 10_000,
        on_short: Callable[[], None] = lambda: None,
    ) -> None:
        self._topic = topic.encode()
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=buffer)
        self._batches: queue.SimpleQueue[Sequence[KVEvent] | None] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._sockets: list[Any] = []
        self._number = 0
        self._on_short = on_short
        # The last batch from which on a consumer that knew nothing before is right: the first, or a whole content.
        self._whole = 0
        self._asked = False
        try:
            self._pub = self._open(zmq.PUB, endpoint)
            self._router = self._open(zmq.ROUTER, replay) if replay else None
            # The engine's thread wakes ours through this pair, so that one poll waits for batches and requests alike.
            self._wake, self._woken = self._open(zmq.PAIR, "inproc://wake"), self._context.socket(zmq.PAIR)
            self._woken.connect("inproc://wake")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise SettingsError(f"cannot publish KV events on {endpoint} ({error}): choose another address") from None
        self.endpoint: str = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay: str | None = self._router.getsockopt_string(zmq.LAST_ENDPOINT) if self._router else None
        self._thread = threading.Thread(target=self._run, name="kvproxy-kv-events", daemon=True)
        self._thread.start()

    def _open(self, kind: int, endpoint: str) -> Any:
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.set_hwm(100_000)
        socket.setsockopt(zmq.LINGER, 0)
        host = endpoint.partition("://")[2]
        if host.startswith(_LOCAL) or not endpoint.startswith("tcp://"):
            socket.bind(endpoint)
        else:
            socket.connect(endpoint)
        return socket

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Send one step's events as a batch; called from one thread, returns at once."""
        self._batches.put(events)
        self._wake.send(b"")

    def publish_all(self, stored: Sequence[KVEvent]) -> None:
        """Publish everything that is cached, for those who came too late to know it."""
        self.publish([AllBlocksCleared(), *stored])

    def close(self) -> None:
        """Send what is queued and end."""
        self._batches.put(None)
        self._wake.send(b"")
        self._thread.join(timeout=5)
        self._context.destroy(linger=200)

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._woken, self._router):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._router in ready:
                self._replay()
            if self._woken in ready:
                self._woken.recv()
                events = self._batches.get()
                if events is None:
                    return
                self._send(events)

    def _send(self, events: Sequence[KVEvent]) -> None:
        payload = msgpack.packb([time.time(), [event.as_wire() for event in events], 0])
        number = self._number.to_bytes(8, "big")
        if isinstance(events[0], AllBlocksCleared):
            self._whole, self._asked = self._number, False
        # Buffered first: whoever has received a batch and asks for a replay must find it there.
        self._buffer.append((number, payload))
        self._pub.send_multipart([self._topic, number, payload])
        self._number += 1

    def _replay(self) -> None:
        assert self._router is not None
        frames = self._router.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            return
        client, _, start = frames
        first = int.from_bytes(self._buffer[0][0], "big") if self._buffer else 0
        if first > max(self._whole, int.from_bytes(start, "big")) and not self._asked:
            # Others may ask, or the same one again, before the whole content comes: it comes to all of them.
            self._asked = True
            self._on_short()
        for number, payload in self._buffer:
            if number >= start:
                self._router.send_multipart([client, b"", self._topic, number, payload])
        self._router.send_multipart([client, b"", b"", _END, b""])
