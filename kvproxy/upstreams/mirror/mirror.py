"""Rebuilds the prefix cache of an engine from its KV events."""

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from kvproxy.backends.reports import StreamStatus
from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.blocks.row_types import PoolReport
from kvproxy.upstreams.mirror import pool_rows
from kvproxy.upstreams.mirror.apply_events import MirrorState, PoolKey, on_gpu
from kvproxy.upstreams.mirror.prefix_match import (
    DEFAULT_BLOCK_SIZE,
    CachedChains,
    MirrorMatch,
    chains_after_prefix,
    hash_block_size,
    match_prefix,
    reuse_unit,
)
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt
from kvproxy.upstreams.mirror.replay_backlog import ReplayBacklog
from kvproxy.upstreams.mirror.reuse_limits import explain_reuse_limits
from kvproxy.upstreams.mirror.sequencer import DecodedBatch, Sequencer, decode

_TCP = re.compile(r"(tcp://[^\s*]+:)(\d+)(?:-(\d+))?")
_LOG_INTERVAL_SECONDS = 60.0
_END_OF_REPLAY = b"\xff" * 8
_REPLAY_TIMEOUT_SECONDS = 5.0
_RECONNECT_SECONDS = 5.0
RESTART_DELAY_SECONDS = 0.5
MAX_MESSAGE_BYTES = 4 * 2**20
"""Maximum size of a message of a publisher, which is disconnected beyond it."""
_MAX_QUEUED_MESSAGES, _MAX_QUEUED_REPLAYED = 64, 256
_LARGE_BYTES = 64 * 2**10
_log = logging.getLogger(__name__)


def expand_endpoint(endpoint: str) -> list[str]:
    """Return one address for each port of `tcp://host:first-last`. Raises ValueError."""
    if re.fullmatch(r"(ipc|inproc)://\S+", endpoint):
        return [endpoint]
    match = _TCP.fullmatch(endpoint)
    if match is None:
        raise ValueError(
            f"{endpoint!r} is not an endpoint: use tcp://host:5557, or tcp://host:5557-5560 for four ranks"
        )
    first, last = int(match[2]), int(match[3] or match[2])
    if not first <= last <= 65_535 or last - first > 1023:
        raise ValueError(f"{endpoint!r} has an invalid range of ports: use at most 1,024 ports, the lowest first")
    return [f"{match[1]}{port}" for port in range(first, last + 1)]


class Mirror:
    """The prefix cache of one engine, rebuilt from the KV events of all its ranks.

    Args:
        endpoint: PUB sockets of the ranks, such as `tcp://host:5557-5560`.
        replay: replay sockets of the ranks, in the same order; None for an engine without replay sockets.
        hasher: configured like the engine's block hashing.
        idle: seconds without a batch, after which a replay is requested, because the last batch may be lost.
        match_unit: the engine's `--prefix-match-unit`; None if it is not set.
    """

    def __init__(
        self,
        endpoint: str,
        replay: str | None = None,
        *,
        hasher: BlockHasher | None = None,
        idle: float = 10.0,
        match_unit: int | None = None,
    ) -> None:
        endpoints = expand_endpoint(endpoint)
        replays: list[str] | list[None] = [None] * len(endpoints) if replay is None else expand_endpoint(replay)
        if len(replays) != len(endpoints):
            raise ValueError(
                f"{endpoint!r} has {len(endpoints)} sockets and {replay!r} has {len(replays)}: use one for each"
            )
        self.hasher = hasher or BlockHasher()
        self.match_unit = match_unit
        self.subscribers = [
            EventSubscriber(one, other, idle=idle) for one, other in zip(endpoints, replays, strict=True)
        ]

    async def start(self) -> None:
        for subscriber in self.subscribers:
            await subscriber.start()

    async def close(self) -> None:
        for subscriber in self.subscribers:
            await subscriber.close()

    def state(self) -> MirrorState:
        """Return the pools of all ranks, except a rank that may have restarted since its last event."""
        merged = MirrorState()
        for index, subscriber in enumerate(self.subscribers):
            if not subscriber.has_valid_state:
                continue
            if len(self.subscribers) == 1:
                return subscriber.state
            for key, pool in subscriber.state.pools.items():
                rank = index if key.rank is None else key.rank
                merged.pools[PoolKey(rank, key.medium, key.group, key.owner)] = pool
        return merged

    def num_resets(self) -> list[int]:
        return [subscriber.state.num_resets for subscriber in self.subscribers]

    def clear_after_reset(self, num_resets_before: list[int]) -> None:
        """Clear the pools of the ranks that have not yet published the reset that the engine confirmed.

        `num_resets_before` is the result of `num_resets` before the request to reset.
        """
        for subscriber, num_resets in zip(self.subscribers, num_resets_before, strict=True):
            if subscriber.state.num_resets == num_resets:
                subscriber.state.clear_blocks()

    def streams(self) -> list[StreamStatus]:
        return [subscriber.status() for subscriber in self.subscribers]

    @property
    def is_complete(self) -> bool:
        """Whether all ranks are connected, and no event since their start or last reset is missing."""
        return all(
            one.is_connected
            and one.sequencer.complete
            and one.sequencer.replay_from is None
            and not one.state.is_truncated
            for one in self.subscribers
        )

    def report(self) -> PoolReport:
        """Report the known blocks. All numbers are None while no rank with a valid state is connected."""
        if not any(subscriber.is_connected and subscriber.has_valid_state for subscriber in self.subscribers):
            return PoolReport()
        return pool_rows.report_pools(self.state())

    def unknown_names(self) -> dict[str, int]:
        """Return the counts of events and media with unknown names, see `MirrorState`."""
        return dict(sum((one.state.unknown_names for one in self.subscribers), Counter[str]()))

    def count_last_removals(self) -> None:
        """See `MirrorState.count_last_removals`."""
        for subscriber in self.subscribers:
            subscriber.state.count_last_removals()

    def hashes_match(self) -> bool | None:
        """Whether the engine publishes the hashes that `hasher` computes; None if no block can be compared."""
        for pools in self.state().pools_by_rank().values():
            for pool in on_gpu(pools):
                for block in pool.children(None):
                    if block.extra_keys is None and len(block.tokens) == pool.block_size:
                        unit = hash_block_size(pools, self.match_unit)
                        digest = self.hasher.hash_blocks(list(block.tokens), unit)[-1]
                        return block.hash in (digest, event_hash(digest))
        return None

    def hash_block_sizes(self) -> list[int]:
        """Return the numbers of tokens that a block hash covers, without duplicates; ranks may differ."""
        return sorted({hash_block_size(pools, self.match_unit) for pools in self.state().pools_by_rank().values()})

    def reuse_unit(self) -> int:
        """Return the number of tokens of which a reused prefix is a multiple, in the first rank; 16 before the first event."""
        for pools in self.state().pools_by_rank().values():
            return reuse_unit(pools)
        return DEFAULT_BLOCK_SIZE

    def reuse_limits(self, hit_unit: int | None = None) -> str | None:
        """See `explain_reuse_limits`."""
        ranks = list(self.state().pools_by_rank().values()) or [[]]
        return next((text for pools in ranks if (text := explain_reuse_limits(pools, hit_unit)) is not None), None)

    def match_prefix(self, prompt: HashedPrompt) -> tuple[int | None, MirrorMatch] | None:
        """Return the rank with the longest cached prefix, and this prefix; None before the first event."""
        matches = self.match_ranks(prompt).items()
        return max(matches, key=lambda item: (item[1].reusable_tokens, item[1].matched_tokens), default=None)

    def match_ranks(self, prompt: HashedPrompt) -> dict[int | None, MirrorMatch]:
        """Return the cached prefix in each data-parallel rank."""
        ranks = self.state().pools_by_rank()
        return {rank: match_prefix(pools, prompt, self.hasher, self.match_unit) for rank, pools in ranks.items()}

    def chains_after_prefix(self, prompt: HashedPrompt) -> CachedChains | None:
        ranks = self.state().pools_by_rank().values()
        continuations = [chains_after_prefix(pools, prompt, self.hasher, self.match_unit) for pools in ranks]
        return max(filter(None, continuations), default=None, key=lambda chains: chains.prefix_tokens)


async def _decode_in_thread_if_large(payload: bytes) -> DecodedBatch:
    return await asyncio.to_thread(decode, payload) if len(payload) > _LARGE_BYTES else decode(payload)


class EventSubscriber:
    """Receives the events of one publisher through a SUB socket, and replays through a DEALER socket."""

    def __init__(self, endpoint: str, replay: str | None = None, *, idle: float = 10.0) -> None:
        self.endpoint = endpoint
        self.state = MirrorState()
        self.sequencer = Sequencer(self.state, has_replay=replay is not None, on_error=self._warn)
        self.is_connected = False
        self._is_disconnected = False
        self._replay_fails = False
        self._replay = replay
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
        # Then the publisher queues messages. It numbers them, so a dropped message is noticed.
        socket.set_hwm(_MAX_QUEUED_MESSAGES)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._monitor = zmq.Socket.shadow(monitor)
        socket.connect(self.endpoint)
        loops = (
            partial(self._watch_connection, monitor, socket),
            partial(self._receive, socket),
            self._request_replays,
        )
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
            unknown_names=dict(self.state.unknown_names),
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

    async def _watch_connection(self, monitor: Any, socket: Any) -> None:
        while True:
            has_event = await monitor.poll(_RECONNECT_SECONDS * 1000)
            if not has_event and self._is_disconnected:
                # ZeroMQ does not reconnect after a message beyond `MAX_MESSAGE_BYTES`.
                with contextlib.suppress(zmq.ZMQError):
                    socket.disconnect(self.endpoint)
                socket.connect(self.endpoint)
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
                decoded = await _decode_in_thread_if_large(frames[2])
                self.sequencer.on_batch(int.from_bytes(frames[1], "big"), frames[2], decoded)
            else:
                self._on_malformed("a message is not a topic, a number, and a batch")
            if self.sequencer.replay_from is not None:
                self._replay_requested.set()
            # `recv_multipart` does not yield if a message is waiting.
            await asyncio.sleep(0)

    async def _request_replays(self) -> None:
        while True:
            try:
                # Unlike `wait_for` of Python 3.11, it does not lose a cancellation in the moment of the event.
                async with asyncio.timeout(self._idle):
                    await self._replay_requested.wait()
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
            dealer.set_hwm(_MAX_QUEUED_REPLAYED)
            dealer.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(self._replay)
            await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            backlog = ReplayBacklog(dealer)
            try:
                while (message := await backlog.get(_REPLAY_TIMEOUT_SECONDS)) is not None:
                    number, payload = message
                    self._replay_fails = False
                    if number == _END_OF_REPLAY:
                        self.sequencer.end_replay()
                        return
                    if len(number) == 8:
                        decoded = await _decode_in_thread_if_large(payload)
                        self.sequencer.on_replayed_batch(int.from_bytes(number, "big"), payload, decoded)
                    else:
                        self._on_malformed("a message of a replay is not a number and a batch")
            finally:
                await backlog.close()
        self._replay_fails = True
        self._warn(f"{self._replay} did not answer a replay request: check the replay endpoint")
        self.sequencer.fail_replay()

    def _warn(self, message: str, error: BaseException | None = None) -> None:
        self._last_error = message
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + _LOG_INTERVAL_SECONDS
            _log.warning("KV events of %s: %s", self.endpoint, message, exc_info=error)

    def _on_malformed(self, message: str) -> None:
        self.sequencer.counts.malformed += 1
        self._warn(message)
