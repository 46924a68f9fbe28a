"""Puts numbered batches in order, and tells lost, repeated and restarted ones apart. No I/O: see `subscriber`.

A publisher numbers its batches from 0, and from 0 again when it restarts; nothing else tells one run from the next. So the
same number with the same content is a duplicate, and with another content it is another run. Whatever is missing or doubtful
is asked for again from the publisher's replay buffer, always with one batch that is known, to see that the run is the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from kvproxy.mirror.resets import Resets
from kvproxy.mirror.state import MirrorState
from kvproxy.mirror.status import Counts
from kvproxy.mirror.wire import Batch, WireError, decode_batch

WINDOW = 10_000
"""Fingerprints kept: as many as vLLM's replay buffer holds by default."""


class Seen:
    """The last batches that were applied, by number."""

    def __init__(self) -> None:
        self._fingerprints: dict[int, int] = {}

    def add(self, number: int, payload: bytes) -> None:
        """A batch was applied."""
        self._fingerprints[number] = xxhash.xxh3_64_intdigest(payload)
        self._fingerprints.pop(number - WINDOW, None)

    def same(self, number: int, payload: bytes) -> bool | None:
        """Whether the batch applied under a number had this content; None where it is not remembered."""
        known = self._fingerprints.get(number)
        return None if known is None else known == xxhash.xxh3_64_intdigest(payload)

    def clear(self) -> None:
        """Forget all of them."""
        self._fingerprints.clear()


@dataclass(slots=True)
class Replay:
    """An answer to a replay request.

    Attributes:
        from_start: whether everything was asked for.
        verified: whether it is of the run that we know.
        answered: whether a batch has come.
        skipping: whether the rest of it is of no use.
    """

    from_start: bool
    verified: bool
    answered: bool = False
    skipping: bool = False


PATIENCE = 64
"""Batches held back for a late one where there is no replay."""
ATTEMPTS = 3
"""Replays in a row that may fail before what is missing is given up."""


class Sequencer:
    """Order of one publisher's batches.

    Args:
        state: what the batches add up to.
        replayable: whether the publisher answers replay requests.
        on_trouble: takes a sentence about a batch that could not be read; nobody hears it by default.

    Attributes:
        next: number of the batch that is due.
        wanted: number from which a replay should be asked for, None when nothing is missing.
        complete: whether everything since the publisher's start was applied.
        doubted: whether what is known may be another process's: a connection was made, and no replay has shown yet who is there.
        resets: resets of the cache, told and confirmed.
    """

    def __init__(self, state: MirrorState, *, replayable: bool, on_trouble: Callable[[str], object] = str) -> None:
        self._state = state
        self._replayable = replayable
        self._on_trouble = on_trouble
        self.next = 0
        self.wanted: int | None = None
        self.complete = True
        self.doubted = False
        self.resets = Resets()
        self.counts = Counts()
        self.timestamp = float("-inf")
        self._seen = Seen()
        self._held: dict[int, bytes] = {}
        self._asked_all = False
        self._replay: Replay | None = None
        self._failures = 0
        self._top = -1
        # Whether the next batch is the first one of a publisher that nothing is known of.
        self._joining = True

    def connected(self) -> None:
        """A connection was made: the publisher may be another one, or have said much before."""
        if self._replayable:
            self.doubted = self.next > 0
            self._want(0)
        elif self.next:
            # Nobody can tell whether it is the same process. Its first batch, or a reset, makes the view complete again.
            self._forget()
            self._joining, self.complete = True, False

    def idle(self) -> None:
        """Nothing came for a while: the last batch may have been lost."""
        if self._replayable:
            self._want(self._overlap() if self.complete or self._asked_all else 0)

    def live(self, number: int, payload: bytes) -> None:
        """A published batch came."""
        self._top = max(self._top, number)
        if self._replay is not None or self.wanted is not None:
            # Until the doubt is settled nothing is applied.
            self._held[number] = payload
        elif number > self.next:
            self._gap(number, payload)
        elif number == self.next:
            self._due(number, payload)
            self._drain()
        elif self._seen.same(number, payload):
            self.counts.duplicates += 1
        elif self._replayable:
            self._want(0)
        else:
            self._restart()
            self.live(number, payload)

    def _due(self, number: int, payload: bytes) -> None:
        batch = self._decode(number, payload)
        if batch is not None and batch.timestamp < self.timestamp and self._replayable:
            # From before a restart, or the clock was set back; the replay tells.
            self._want(self._overlap())
        else:
            self._apply(number, payload, batch)

    def _gap(self, number: int, payload: bytes) -> None:
        self.counts.gaps += not self._held
        self._held[number] = payload
        if self._replayable:
            self._want(self._overlap())
        elif len(self._held) > PATIENCE or self._joining:
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
        self._replay = Replay(from_start=start == 0, verified=self.next == 0)
        self.counts.replays += 1
        return start

    def replayed(self, number: int, payload: bytes) -> None:
        """One batch of a replay, in order; of no use where the replay was given up meanwhile, see `fail`."""
        replay = self._replay
        if replay is None:
            return
        first, replay.answered = not replay.answered, True
        self._failures = 0
        if first and number == 0 and not self.complete:
            # All of it is there now: build it up again.
            self._forget()
            self.complete = replay.verified = True
        if number < self.next and not replay.skipping:
            self._compare(number, payload, replay)
        if number == self.next and replay.verified and not replay.skipping:
            self._apply(number, payload, self._decode(number, payload))
        elif number >= self.next and not replay.skipping:
            self._beyond(number, payload, replay, first)

    def _compare(self, number: int, payload: bytes, replay: Replay) -> None:
        same = self._seen.same(number, payload)
        if same is False:
            self._restart()
            if number:
                replay.skipping = True
                self._want(0)
        replay.verified = replay.verified or same is not None

    def _beyond(self, number: int, payload: bytes, replay: Replay, first: bool) -> None:
        """A batch that does not follow on what is known."""
        if first or not replay.verified:
            # The publisher's buffer does not reach back far enough.
            self._lose(number)
            replay.verified = self._asked_all = True
            self._apply(number, payload, self._decode(number, payload))
        else:
            # Dropped between its socket and ours, or a new run met half-way: ask for the rest.
            replay.skipping = True
            self._want(self._overlap())

    def end_replay(self) -> None:
        """The replay is complete."""
        replay = self._replay
        if replay is None:
            return
        if self.next and not replay.verified:
            # It never published what we have: another run, with fewer batches.
            self._restart()
            self._want(0)
        elif replay.from_start and not self.complete:
            # It has no more than that: to ask for all of it once more would not help.
            self._asked_all = True
        self._failures = 0
        self.doubted = self.doubted and self.wanted is not None
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
        self._replay = None
        held, self._held = self._held, {}
        for each in sorted(held.items()):
            self.live(*each)

    def _overlap(self) -> int:
        """The last batch that was applied."""
        return max(0, self.next - 1)

    def _want(self, start: int) -> None:
        self.wanted = start if self.wanted is None else min(self.wanted, start)

    def _decode(self, number: int, payload: bytes) -> Batch | None:
        try:
            return decode_batch(payload)
        except WireError as error:
            self.counts.malformed += 1
            self._on_trouble(f"batch {number} cannot be read: {error}")
            return None

    def _apply(self, number: int, payload: bytes, batch: Batch | None) -> None:
        if batch is None:
            # What it said is lost; what it took away must not be claimed any longer.
            self._lose(number)
            if self._replay is None and not self._asked_all:
                self.connected()
        else:
            self._state.apply(batch)
            self.timestamp = batch.timestamp
            # After a reset of the cache, and at the start of a run, nothing that was lost before matters.
            self.complete = self.complete or batch.clears or number == 0
            if self.resets.voids(number, batch):
                self._state.clear()
        self._seen.add(number, payload)
        self.next = number + 1
        self._joining = False
        self.counts.batches += 1

    def cleared(self, mark: int) -> None:
        """The engine confirmed a reset of its cache, asked for after `mark` was taken of `resets`."""
        if self.resets.confirm(mark, max(self.next, self._top + 1)):
            self._state.clear()

    def fail(self) -> None:
        """Something unforeseen broke while a batch was taken over: what is known is doubtful, and begins anew after it."""
        self._replay = None
        self.wanted = None
        self._held.clear()
        self._lose(self.next + 1)

    def _restart(self) -> None:
        self.counts.restarts += 1
        self._top = -1
        self.resets.restart()
        self._forget()
        self.complete = True
        self._asked_all = False

    def _lose(self, number: int) -> None:
        """Begin anew at a batch: a pool that misses a block is better than one that claims a block that is gone."""
        self.counts.losses += 1
        self._forget()
        self.complete = False
        self.next = number

    def _forget(self) -> None:
        self._state.reset()
        self._seen.clear()
        self.next = 0
        self.doubted = False
        self.timestamp = float("-inf")
