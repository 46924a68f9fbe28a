"""Puts numbered batches in order, and tells lost, repeated and restarted ones apart. No I/O: see `subscriber`.

A publisher numbers its batches from 0 and starts at 0 again when it restarts; nothing else tells one run from the next.
So every batch that was applied is remembered by a fingerprint: the same number with the same content is a duplicate, the
same number with another content is another run. Whatever is missing or doubtful is asked for again from the publisher's
replay buffer, always with one batch that is known already, to see that the run is still the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from kvproxy.mirror.wire import Batch, Cleared, WireError, decode_batch

WINDOW = 10_000
"""Fingerprints kept: as many as vLLM's replay buffer holds by default."""
PATIENCE = 64
"""Batches held back for a late one where there is no replay."""
ATTEMPTS = 3
"""Replays in a row that may fail before what is missing is given up."""


@dataclass(slots=True)
class Counts:
    """What came in: batches applied, repeated ones, gaps seen, restarts of the publisher, losses beyond recovery."""

    batches: int = 0
    duplicates: int = 0
    gaps: int = 0
    restarts: int = 0
    replays: int = 0
    losses: int = 0
    malformed: int = 0


class Sequencer:
    """Order of one publisher's batches.

    Args:
        apply: takes a batch over, in order.
        reset: forgets all batches.
        replayable: whether the publisher answers replay requests.

    Attributes:
        next: number of the batch that is due.
        wanted: number from which a replay should be asked for, None when nothing is missing.
        complete: whether everything since the publisher's start was applied.
    """

    def __init__(self, apply: Callable[[Batch], None], reset: Callable[[], None], *, replayable: bool) -> None:
        self._apply_batch = apply
        self._reset_state = reset
        self._replayable = replayable
        self.next = 0
        self.wanted: int | None = None
        self.complete = True
        self.counts = Counts()
        self.timestamp = float("-inf")
        self._seen: dict[int, int] = {}
        self._held: dict[int, bytes] = {}
        self._too_short = False
        self._replaying = False
        self._failures = 0
        self._verified = False
        self._answered = False
        self._skipping = False

    def connected(self) -> None:
        """A connection was made: the publisher may be another one, or have said much before."""
        if self._replayable:
            self._want(0)

    def idle(self) -> None:
        """Nothing came for a while: the last batch may have been lost."""
        if self._replayable:
            self._want(self._overlap() if self.complete or self._too_short else 0)

    def live(self, number: int, payload: bytes) -> None:
        """A published batch came."""
        if self._replaying or self.wanted is not None:
            # Until the doubt is settled nothing is applied.
            self._held[number] = payload
        elif number > self.next:
            self._gap(number, payload)
        elif number == self.next:
            self._due(number, payload)
            self._drain()
        elif self._seen.get(number) == _fingerprint(payload):
            self.counts.duplicates += 1
        elif self._replayable:
            self._want(0)
        else:
            self._restart()
            self.live(number, payload)

    def _due(self, number: int, payload: bytes) -> None:
        batch = _decode(payload)
        if batch is not None and batch.timestamp < self.timestamp and self._replayable:
            # From before a restart, or the clock was set back; the replay tells.
            self._want(self._overlap())
        else:
            self._apply(number, payload, batch)

    def _gap(self, number: int, payload: bytes) -> None:
        if not self._held:
            self.counts.gaps += 1
        self._held[number] = payload
        if self._replayable:
            self._want(self._overlap())
        elif len(self._held) > PATIENCE or not self.counts.batches:
            self._lose(min(self._held))
            self._drain()

    def _drain(self) -> None:
        """Apply what was held back for the batches that have come now."""
        while self.wanted is None and self.next in self._held:
            self._due(self.next, self._held.pop(self.next))
        if self._held and min(self._held) < self.next:
            self._held = {number: payload for number, payload in self._held.items() if number >= self.next}

    def begin_replay(self) -> int:
        """A replay is asked for now; where it begins."""
        assert self.wanted is not None
        start, self.wanted = self.wanted, None
        # All of these were published before the request, so the answer holds them, or they are of an earlier run.
        self._held.clear()
        self._replaying = True
        self._answered = self._skipping = False
        self._verified = self.next == 0
        self.counts.replays += 1
        return start

    def replayed(self, number: int, payload: bytes) -> None:
        """One batch of a replay, in order."""
        first, self._answered = not self._answered, True
        self._failures = 0
        if self._skipping:
            return
        if first and number == 0 and not self.complete:
            # All of it is there now: build it up again.
            self._forget()
            self.complete = self._verified = True
        if number < self.next:
            self._compare(number, payload)
            if self._skipping:
                return
        if number == self.next and self._verified:
            self._apply(number, payload, _decode(payload))
        elif number >= self.next:
            self._beyond(number, payload, first)

    def _compare(self, number: int, payload: bytes) -> None:
        known = self._seen.get(number)
        if known == _fingerprint(payload):
            self._verified = True
        elif known is not None:
            self._restart()
            self._verified = True
            if number:
                self._skipping = True
                self._want(0)

    def _beyond(self, number: int, payload: bytes, first: bool) -> None:
        """A batch that does not follow on what is known."""
        if first or not self._verified:
            # The publisher's buffer does not reach back far enough.
            self._lose(number)
            self._verified = self._too_short = True
            self._apply(number, payload, _decode(payload))
        else:
            # Dropped between its socket and ours, or a new run met half-way: ask for the rest.
            self._skipping = True
            self._want(self._overlap())

    def end_replay(self) -> None:
        """The replay is complete."""
        if self.next and not self._verified:
            # It never published what we have: another run, with fewer batches.
            self._restart()
            self._want(0)
        self._failures = 0
        self._resume()

    def fail_replay(self) -> None:
        """The replay was not answered, or broke off."""
        self._failures += 1
        if self._failures < ATTEMPTS:
            self._want(self._overlap() if self.complete else 0)
        elif self._held:
            self._failures = 0
            self._lose(min(self._held))
        self._resume()

    def _resume(self) -> None:
        self._replaying = False
        held, self._held = self._held, {}
        for number in sorted(held):
            self.live(number, held[number])

    def _overlap(self) -> int:
        """The last batch that was applied."""
        return max(0, self.next - 1)

    def _want(self, start: int) -> None:
        self.wanted = start if self.wanted is None else min(self.wanted, start)

    def _apply(self, number: int, payload: bytes, batch: Batch | None) -> None:
        if batch is None:
            # What it said is lost; what it took away must not be claimed any longer.
            self._lose(number)
        else:
            self._apply_batch(batch)
            self.timestamp = batch.timestamp
            # After a reset of the cache nothing that was lost before matters.
            self.complete = self.complete or any(isinstance(event, Cleared) for event in batch.events)
        self._seen[number] = _fingerprint(payload)
        self._seen.pop(number - WINDOW, None)
        self.next = number + 1
        self.counts.batches += 1

    def _restart(self) -> None:
        self.counts.restarts += 1
        self._forget()
        self.complete = True
        self._too_short = False

    def _lose(self, number: int) -> None:
        """Begin anew at a batch: a pool that misses a block is better than one that claims a block that is gone."""
        self.counts.losses += 1
        self._forget()
        self.complete = False
        self.next = number

    def _forget(self) -> None:
        self._reset_state()
        self._seen.clear()
        self.next = 0
        self.timestamp = float("-inf")


def _fingerprint(payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(payload)


def _decode(payload: bytes) -> Batch | None:
    try:
        return decode_batch(payload)
    except WireError:
        return None
