"""Applies event batches in order, and detects lost batches and restarts of the publisher, without I/O.

A publisher numbers its batches from 0, and from 0 again after a restart. A replay begins with the number of the last
applied batch. If the replayed batch has other content, the publisher restarted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from kvproxy.backends.reports import StreamCounts
from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import EventBatch, EventDecodeError, decode_batch

_MAX_FINGERPRINTS = 10_000  # The default length of vLLM's replay buffer.
MAX_REPLAY_ATTEMPTS = 3
MAX_HELD_BYTES = 16 * 2**20
"""Maximum bytes of batches that wait for the end of a replay. Without further batches, the next replay is requested."""


DecodedBatch = EventBatch | EventDecodeError


def decode(payload: bytes) -> DecodedBatch:
    """Decode a batch; return the error of an invalid one."""
    try:
        return decode_batch(payload)
    except EventDecodeError as error:
        return error


@dataclass(slots=True)
class Replay:
    from_start: bool  # Batch 0 was requested.
    is_verified: bool  # The replay showed that the publisher has not restarted.
    has_batches: bool = False
    is_skipped: bool = False  # Ignore the remaining batches, because another replay is necessary.


class Sequencer:
    """Applies one publisher's batches in order. `on_error` receives a message for each batch that cannot be decoded."""

    def __init__(self, state: MirrorState, *, has_replay: bool, on_error: Callable[[str], object] = str) -> None:
        self._state = state
        self._has_replay = has_replay
        self._on_error = on_error
        self.next = 0  # Number of the next batch to apply.
        self.replay_from: int | None = (
            None  # Number of the first batch that a replay must contain, if one is necessary.
        )
        self.complete = True  # All batches since the publisher's start or last reset were applied.
        self.is_unverified = False  # Until a replay after a reconnect shows whether the publisher restarted.
        self.counts = StreamCounts()
        self._timestamp = float("-inf")
        self._fingerprints: dict[int, int] = {}
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._replayed_all = False
        self._replay: Replay | None = None
        self._num_failures = 0

    def on_connected(self) -> None:
        """Request a replay of all batches, because the publisher may have restarted; without replays, clear the state."""
        if self._has_replay:
            self.is_unverified = self.next > 0
            self._request_replay(0)
        elif self.next:
            # Only the first batch of a run, or a reset, makes the state complete again.
            self._clear()
            self.complete = False

    def on_idle(self) -> None:
        """Request a replay, because no batch has arrived for some time, and the last batch may be lost."""
        if self._has_replay:
            self._request_replay(self._last_applied() if self.complete or self._replayed_all else 0)

    def on_batch(self, number: int, payload: bytes, decoded: DecodedBatch | None = None) -> None:
        """Apply or hold a batch. `decoded` is the result of `decode`, if the caller decoded the batch in a thread."""
        if self._replay is not None or self.replay_from is not None:
            self._hold(number, payload)
        elif number > self.next:
            self._on_gap(number, payload, decoded)
        elif number == self.next:
            self._on_next(number, payload, decoded)
        elif self._equals_applied_batch(number, payload):
            self.counts.duplicates += 1
        elif self._has_replay:
            self._request_replay(0)
        else:
            self._on_restart()
            self.on_batch(number, payload, decoded)

    def _hold(self, number: int, payload: bytes) -> None:
        if number not in self._held and self._held_bytes + len(payload) <= MAX_HELD_BYTES:
            self._held[number] = payload
            self._held_bytes += len(payload)

    def _release_held(self) -> dict[int, bytes]:
        held, self._held, self._held_bytes = self._held, {}, 0
        return held

    def _equals_applied_batch(self, number: int, payload: bytes) -> bool | None:
        known = self._fingerprints.get(number)
        return None if known is None else known == xxhash.xxh3_64_intdigest(payload)

    def _on_next(self, number: int, payload: bytes, decoded: DecodedBatch | None) -> None:
        batch = self._decode(number, payload, decoded)
        if batch is not None and batch.timestamp < self._timestamp and self._has_replay:
            # The publisher restarted, or its clock was set back: the replay decides.
            self._request_replay(self._last_applied())
        else:
            self._apply(number, payload, batch)

    def _on_gap(self, number: int, payload: bytes, decoded: DecodedBatch | None) -> None:
        self.counts.gaps += 1
        if self._has_replay:
            self._hold(number, payload)
            self._request_replay(self._last_applied())
        else:
            # A PUB socket keeps the order, so the missing batches are lost.
            self._skip_to(number)
            self._on_next(number, payload, decoded)

    def begin_replay(self) -> int:
        """Start the requested replay; return the number of its first batch."""
        assert self.replay_from is not None
        start, self.replay_from = self.replay_from, None
        # Held batches precede the request: the replay contains them, or they belong to an earlier run.
        self._release_held()
        self._replay = Replay(from_start=start == 0, is_verified=self.next == 0)
        self.counts.replays += 1
        return start

    def on_replayed_batch(self, number: int, payload: bytes, decoded: DecodedBatch | None = None) -> None:
        replay = self._replay
        if replay is None:
            return
        is_first, replay.has_batches = not replay.has_batches, True
        self._num_failures = 0
        if is_first and number == 0 and not self.complete:
            # The buffer has all batches: rebuild the state.
            self._clear()
            self.complete = replay.is_verified = True
        if number < self.next and not replay.is_skipped:
            self._verify(number, payload, replay)
        if number == self.next and replay.is_verified and not replay.is_skipped:
            self._apply(number, payload, self._decode(number, payload, decoded))
        elif number >= self.next and not replay.is_skipped:
            self._on_replay_gap(number, payload, replay, is_first, decoded)

    def _verify(self, number: int, payload: bytes, replay: Replay) -> None:
        same = self._equals_applied_batch(number, payload)
        if same is False:
            self._on_restart()
            if number:
                replay.is_skipped = True
                self._request_replay(0)
        replay.is_verified = replay.is_verified or same is not None

    def _on_replay_gap(
        self, number: int, payload: bytes, replay: Replay, is_first: bool, decoded: DecodedBatch | None
    ) -> None:
        if is_first or not replay.is_verified:
            # The publisher's buffer does not go back far enough.
            self._skip_to(number)
            replay.is_verified = self._replayed_all = True
            self._apply(number, payload, self._decode(number, payload, decoded))
        else:
            # Batches were dropped on the way, or a new run started: request the rest.
            replay.is_skipped = True
            self._request_replay(self._last_applied())

    def end_replay(self) -> None:
        replay = self._replay
        if replay is None:
            return
        if self.next and not replay.is_verified:
            # The publisher never published our batches: another run with fewer batches.
            self._on_restart()
            self._request_replay(0)
        elif replay.from_start and not self.complete:
            # The buffer has no more batches, so do not request all of them again.
            self._replayed_all = True
        self._num_failures = 0
        self.is_unverified = self.is_unverified and self.replay_from is not None
        self._apply_held_batches()

    def fail_replay(self) -> None:
        """Request a replay again after a timeout. After `MAX_REPLAY_ATTEMPTS`, count the missing batches as lost."""
        self._num_failures += 1
        if self._num_failures < MAX_REPLAY_ATTEMPTS:
            self._request_replay(self._last_applied() if self.complete else 0)
        elif self._held:
            self._num_failures = 0
            self._skip_to(min(self._held))
        self._apply_held_batches()

    def _apply_held_batches(self) -> None:
        self._replay = None
        for held_batch in sorted(self._release_held().items()):
            self.on_batch(*held_batch)

    def _last_applied(self) -> int:
        return max(0, self.next - 1)

    def _request_replay(self, start: int) -> None:
        self.replay_from = start if self.replay_from is None else min(self.replay_from, start)

    def _decode(self, number: int, payload: bytes, decoded: DecodedBatch | None) -> EventBatch | None:
        batch = decoded or decode(payload)
        if isinstance(batch, EventBatch):
            return batch
        self.counts.malformed += 1
        self._on_error(f"batch {number} cannot be decoded: {batch}")
        return None

    def _apply(self, number: int, payload: bytes, batch: EventBatch | None) -> None:
        if batch is None:
            # The lost batch may have removed blocks.
            self._skip_to(number)
            if self._replay is None and not self._replayed_all:
                self.on_connected()
        else:
            self._state.apply(batch)
            self._timestamp = batch.timestamp
            # After a reset, and at the start of a run, earlier losses do not matter.
            self.complete = self.complete or batch.has_reset or number == 0
        self._fingerprints[number] = xxhash.xxh3_64_intdigest(payload)
        self._fingerprints.pop(number - _MAX_FINGERPRINTS, None)
        self.next = number + 1
        self.counts.batches += 1

    def discard_state(self) -> None:
        """Clear the state after an unexpected error, and skip the current batch."""
        self._replay = None
        self.replay_from = None
        self._release_held()
        self._skip_to(self.next + 1)

    def _on_restart(self) -> None:
        self.counts.restarts += 1
        self._clear()
        self.complete = True
        self._replayed_all = False

    def _skip_to(self, number: int) -> None:
        self.counts.losses += 1
        self._clear()
        self.complete = False
        self.next = number

    def _clear(self) -> None:
        self._state.reset()
        self._fingerprints.clear()
        self.next = 0
        self.is_unverified = False
        self._timestamp = float("-inf")
