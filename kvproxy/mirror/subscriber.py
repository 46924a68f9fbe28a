"""ZeroMQ sockets to one publisher of KV events: SUB for published batches, DEALER for replays."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from kvproxy.mirror.apply_events import MirrorState
from kvproxy.mirror.sequencer import Sequencer
from kvproxy.mirror.stream_status import StreamStatus

LOG_INTERVAL_SECONDS = 60.0
END_OF_REPLAY = b"\xff" * 8
REPLAY_TIMEOUT_SECONDS = 5.0
RESTART_DELAY_SECONDS = 0.5
_log = logging.getLogger(__name__)


class EventSubscriber:
    """Receives the events of one publisher.

    Args:
        endpoint: the PUB socket, `tcp://host:port`. With host `*`, the proxy binds and the publisher connects.
        replay, idle: see `Mirror`.
    """

    def __init__(self, endpoint: str, replay: str | None = None, *, topic: str = "", idle: float = 10.0) -> None:
        self.endpoint = endpoint
        self.state = MirrorState()
        self.sequencer = Sequencer(self.state, has_replay=replay is not None, on_error=self._warn)
        self.is_connected = False
        self._is_disconnected = False
        self._replay_fails = False
        self._replay = replay
        self._topic = topic.encode()
        self._idle = idle
        self._last_error: str | None = None
        self._next_log = 0.0
        self._context: zmq.asyncio.Context | None = None
        self._monitor: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._replay_requested = asyncio.Event()

    async def start(self) -> None:
        context = self._context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        socket.setsockopt(zmq.SUBSCRIBE, self._topic)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._monitor = zmq.Socket.shadow(monitor)
        if "*" in self.endpoint:
            socket.bind(self.endpoint)
        else:
            socket.connect(self.endpoint)
        loops = (partial(self._watch_connection, monitor), partial(self._receive, socket), self._request_replays)
        self._tasks = [asyncio.create_task(self._run_forever(loop)) for loop in loops]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    @property
    def has_valid_state(self) -> bool:
        """Whether `state` describes the running publisher.

        False after a disconnect, until a replay shows that the publisher did not restart.
        """
        return not self._is_disconnected and not self.sequencer.is_unverified

    def status(self) -> StreamStatus:
        return StreamStatus(
            endpoint=self.endpoint,
            connected=self.is_connected,
            next=self.sequencer.next,
            complete=self.sequencer.complete,
            unknown_removals=self.state.unknown_removals,
            error=self._last_error,
            replay_fails=self._replay_fails,
            **asdict(self.sequencer.counts),
        )

    async def _run_forever(self, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await loop()
            except Exception as error:
                self._warn(f"cannot process events: {type(error).__name__} {error}", error)
                self.sequencer.discard_state()
                await asyncio.sleep(RESTART_DELAY_SECONDS)

    async def _watch_connection(self, monitor: Any) -> None:
        while True:
            await monitor.poll()
            self._read_monitor()
            await asyncio.sleep(0)

    def _read_monitor(self) -> None:
        while self._monitor.get(zmq.EVENTS) & zmq.POLLIN:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            self.is_connected = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._is_disconnected = not self.is_connected
            if self.is_connected:
                self.sequencer.on_connected()
                self._replay_requested.set()

    async def _receive(self, socket: Any) -> None:
        while True:
            frames = await socket.recv_multipart()
            # Handle a new connection before its first message, which may come from a new process.
            self._read_monitor()
            if len(frames) == 3 and len(frames[1]) == 8:
                self.sequencer.on_batch(int.from_bytes(frames[1], "big"), frames[2])
            else:
                self._on_malformed("a message is not a topic, a number, and a batch")
            if self.sequencer.replay_from is not None:
                self._replay_requested.set()
            # `recv_multipart` does not yield if a message is waiting.
            await asyncio.sleep(0)

    async def _request_replays(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._replay_requested.wait(), self._idle)
            except TimeoutError:
                if self.is_connected:
                    self.sequencer.on_idle()
            self._replay_requested.clear()
            # A new connection requests the replay again, so do not try while disconnected.
            while self._replay is not None and self.is_connected and self.sequencer.replay_from is not None:
                await self._run_replay(self.sequencer.begin_replay())

    async def _run_replay(self, start: int) -> None:
        assert self._context is not None
        assert self._replay is not None
        # A new socket does not receive late responses to earlier requests.
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.set_hwm(0)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(self._replay)
            await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            while await dealer.poll(REPLAY_TIMEOUT_SECONDS * 1000):
                # Some versions of vLLM send no topic.
                number, payload = ([b"", b""] + await dealer.recv_multipart())[-2:]
                self._replay_fails = False
                if number == END_OF_REPLAY:
                    self.sequencer.end_replay()
                    return
                if len(number) == 8:
                    self.sequencer.on_replayed_batch(int.from_bytes(number, "big"), payload)
                else:
                    self._on_malformed("a message of a replay is not a number and a batch")
        self._replay_fails = True
        self._warn(f"{self._replay} did not answer a replay request: check the replay endpoint")
        self.sequencer.fail_replay()

    def _warn(self, message: str, error: BaseException | None = None) -> None:
        self._last_error = message
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + LOG_INTERVAL_SECONDS
            _log.warning("KV events of %s: %s", self.endpoint, message, exc_info=error)

    def _on_malformed(self, message: str) -> None:
        self.sequencer.counts.malformed += 1
        self._warn(message)
