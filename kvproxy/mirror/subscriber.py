"""Sockets to one publisher of KV events: SUB for what happens, DEALER for what was missed."""

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

from kvproxy.mirror.sequencer import Sequencer
from kvproxy.mirror.state import MirrorState
from kvproxy.mirror.status import StreamStatus

QUIET = 60.0
"""Seconds between two lines of one stream."""
_log = logging.getLogger(__name__)


class Troubles:
    """Log of one stream.

    Args:
        endpoint: the stream's address, named in each line.
        clock: seconds, ever growing.

    Attributes:
        last: what went wrong last; None where nothing has.
    """

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.last: str | None = None
        self._endpoint = endpoint
        self._clock = clock
        self._told = float("-inf")
        self._untold = 0

    def tell(self, text: str, error: BaseException | None = None) -> None:
        """Log a line, or only count it when the last one is not long ago; with an error, its traceback too."""
        self.last = text
        now = self._clock()
        if now - self._told < QUIET:
            self._untold += 1
            return
        more = f" ({self._untold} more since the last line)" if self._untold else ""
        _log.warning("KV events of %s: %s%s", self._endpoint, text, more, exc_info=error)
        self._told, self._untold = now, 0


END = b"\xff" * 8
"""In place of a number: the replay is complete."""
REPLAY_TIMEOUT = 5.0
SLICE = 0.005
"""Seconds of decoding before others have their turn."""
RESTART = 0.5
"""Seconds before a task that failed goes on."""


class Subscriber:
    """Follows one publisher.

    Args:
        endpoint: its PUB socket, `tcp://host:port`; with `*` for the host we bind and engines connect.
        replay: its ROUTER socket, None where there is none.
        topic: beginning of the topics to follow.
        idle: seconds of silence after which it is asked whether anything was missed.
    """

    def __init__(self, endpoint: str, replay: str | None = None, *, topic: str = "", idle: float = 10.0) -> None:
        self.endpoint = endpoint
        self.state = MirrorState()
        self._troubles = Troubles(endpoint)
        self.sequencer = Sequencer(self.state, replayable=replay is not None, on_trouble=self._troubles.tell)
        self.is_connected = False
        self._is_gone = False
        self._replay_fails = False
        self._replay = replay
        self._topic = topic.encode()
        self._idle = idle
        self._heard: float | None = None
        self._context: zmq.asyncio.Context | None = None
        self._monitor: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._doubt = asyncio.Event()

    async def start(self) -> None:
        """Open the sockets and follow from now on.

        Raises:
            zmq.ZMQError: the endpoint is none, or is taken.
        """
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
        works = (partial(self._watch, monitor), partial(self._follow, socket), self._recover)
        self._tasks = [asyncio.create_task(self._keep_on(work)) for work in works]

    async def close(self) -> None:
        """End all tasks and close the sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    @property
    def is_believed(self) -> bool:
        """Whether what is known is of a process that runs: one that is gone took its blocks with it."""
        return not self._is_gone and not self.sequencer.doubted

    def status(self) -> StreamStatus:
        """How the stream fares."""
        return StreamStatus(
            endpoint=self.endpoint,
            connected=self.is_connected,
            next=self.sequencer.next,
            complete=self.sequencer.complete,
            silent_seconds=None if self._heard is None else round(time.monotonic() - self._heard, 1),
            unknown_removals=self.state.unknown,
            error=self._troubles.last,
            replay_fails=self._replay_fails,
            **asdict(self.sequencer.counts),
        )

    async def _keep_on(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task until it is cancelled. What it fails with is logged, and it goes on with the next message."""
        while True:
            try:
                await work()
            except Exception as error:
                self._troubles.tell(f"taking them over failed: {type(error).__name__} {error}", error)
                self.sequencer.fail()
                await asyncio.sleep(RESTART)

    async def _watch(self, monitor: Any) -> None:
        while True:
            await monitor.poll()
            self._notice()
            await asyncio.sleep(0)

    def _notice(self) -> None:
        """Whoever connects may have said something before, or be another process."""
        while self._monitor.get(zmq.EVENTS) & zmq.POLLIN:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            self.is_connected = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._is_gone = not self.is_connected
            if self.is_connected:
                self.sequencer.connected()
                self._doubt.set()

    async def _follow(self, socket: Any) -> None:
        plain: Any = zmq.Socket.shadow(socket)
        while True:
            await socket.poll()
            self._heard = time.monotonic()
            # One wake-up for many messages: a flood costs decoding, not the event loop's bookkeeping.
            while time.monotonic() - self._heard < SLICE:
                try:
                    frames = plain.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                # A connection is told before what comes through it: nothing of a new process is taken for the old one's.
                self._notice()
                if len(frames) == 3 and len(frames[1]) == 8:
                    self.sequencer.live(int.from_bytes(frames[1], "big"), frames[2])
                else:
                    self._misread("a message is no topic, number and batch")
            if self.sequencer.wanted is not None:
                self._doubt.set()
            await asyncio.sleep(0)

    async def _recover(self) -> None:
        """Ask for what was missed, and after silence whether anything was."""
        while True:
            try:
                await asyncio.wait_for(self._doubt.wait(), self._idle)
            except TimeoutError:
                if self.is_connected:
                    self.sequencer.idle()
            self._doubt.clear()
            # Nobody answers while the engine is gone; its return raises the doubt again.
            while self._replay is not None and self.is_connected and self.sequencer.wanted is not None:
                await self._ask(self.sequencer.begin_replay())

    async def _ask(self, start: int) -> None:
        """One replay. The socket is new, so that no late answer to an earlier request comes through it."""
        assert self._context is not None
        assert self._replay is not None
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.set_hwm(0)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(self._replay)
            await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            while await dealer.poll(REPLAY_TIMEOUT * 1000):
                # vLLM has answered with a topic and without.
                number, payload = ([b"", b""] + await dealer.recv_multipart())[-2:]
                self._replay_fails = False
                if number == END:
                    self.sequencer.end_replay()
                    return
                if len(number) == 8:
                    self.sequencer.replayed(int.from_bytes(number, "big"), payload)
                else:
                    self._misread("a message of a replay is no number and batch")
        self._replay_fails = True
        self._troubles.tell(
            f"{self._replay} gave no answer to a request for missed ones: is the replay endpoint right?"
        )
        self.sequencer.fail_replay()

    def _misread(self, text: str) -> None:
        self.sequencer.counts.malformed += 1
        self._troubles.tell(text)
