"""Session-aware LRU: a block that is unlikely to be reused soon is ordered as if its last use were earlier.

A request continues a session (a conversation) if it begins with at least half of the session's last prompt and response.
The policy subtracts seconds from the last use of a session's block in three cases:

- The session's next request does not contain the block, because a turn was edited or compacted: `_SUPERSEDED_SECONDS`.
- The client began another session, and clients rarely returned to sessions that they left: `_LEFT_SECONDS`.
- The session waits for a person or a tool: the median pause of this kind.

Blocks of several sessions, such as a shared system prompt, keep their last use.
"""

import heapq
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.blocks.eviction.eviction_policy import CacheUse, Key

_SUPERSEDED_SECONDS = 3_000.0
_LEFT_SECONDS = 10_000.0
_MAX_RETURNS = 0.25
"""Clients rarely returned if they returned to less than this share of the sessions that they left."""
_LEAST_PAUSES = 10
_MAX_PAUSES = 500
_MAX_CLIENTS = 10_000
_MAX_STALE_ENTRIES = 64
_MAX_KEYS_PER_BLOCK = 4
"""Maximum hashes of sessions per block of the pool, before all sessions are forgotten. Failed requests leave hashes."""


@dataclass(slots=True)
class _TrackedSession(Generic[Key]):
    chain: Sequence[Key] = ()
    keys: dict[Key, None] = field(default_factory=dict)
    last_use: float = 0.0
    awaits_user: bool = False
    was_left: bool = False


@dataclass(slots=True)
class _PauseMedian:
    recent: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        if len(self.recent) == _MAX_PAUSES:
            self.ordered.remove(self.recent.popleft())
        self.recent.append(seconds)
        insort(self.ordered, seconds)

    def median(self) -> float:
        return self.ordered[len(self.ordered) // 2] if len(self.ordered) >= _LEAST_PAUSES else 0.0


class SessionPolicy(Generic[Key]):
    """Session-aware LRU; plain LRU if `begin` is never called."""

    def __init__(self, capacity: int) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._idle: dict[Key, tuple[float, int, Key]] = {}
        self._max_keys = _MAX_KEYS_PER_BLOCK * capacity
        self._sessions: dict[Key, _TrackedSession[Key] | None] = {}
        """The session of each key, or None for a key of several sessions."""
        self._current: OrderedDict[str, _TrackedSession[Key]] = OrderedDict()
        self._pauses = {False: _PauseMedian(), True: _PauseMedian()}
        self._num_left = self._num_returned = self._num_added = 0
        self._now = 0.0

    def begin(self, chain: Sequence[Key], use: CacheUse) -> None:
        """Record the start of a request, before it receives new blocks. `chain` has the block hashes of its prompt."""
        self._now = max(self._now, use.seconds)
        session, shared = self._find_session(chain, use.client)
        last = self._current.get(use.client) if use.client is not None else None
        if last is not None and last is not session:
            self._mark_left(last)
        if session is None:
            session = _TrackedSession()
        else:
            self._pauses[session.awaits_user].add(use.seconds - session.last_use)
            self._num_returned += session.was_left
            session.was_left = False
            for key in session.chain[shared:]:
                if key in session.keys:
                    self._subtract_from_last_use(key, _SUPERSEDED_SECONDS)
        if use.client is not None:
            self._current[use.client] = session
            self._current.move_to_end(use.client)
            if len(self._current) > _MAX_CLIENTS:
                self._current.popitem(last=False)
        session.last_use, session.awaits_user = use.seconds, use.awaits_user
        if len(self._sessions) > self._max_keys:
            self._sessions.clear()
        self._extend(session, chain)

    def end(self, chain: Sequence[Key], use: CacheUse) -> None:
        """Record the end of a request, before its blocks become idle. `chain` includes the response's block hashes."""
        self._now = max(self._now, use.seconds)
        session = self._latest_session(chain)
        if session is not None:
            session.last_use, session.awaits_user = use.seconds, use.awaits_user
            self._extend(session, chain)

    def _find_session(self, chain: Sequence[Key], client: str | None) -> tuple[_TrackedSession[Key] | None, int]:
        # The client's last session is known even if its blocks were evicted.
        for session in (self._current.get(client) if client is not None else None, self._latest_session(chain)):
            if session is not None:
                shared = common_prefix_length(session.chain, chain)
                if 2 * shared >= len(session.chain):
                    return session, shared
        return None, 0

    def _latest_session(self, chain: Sequence[Key]) -> _TrackedSession[Key] | None:
        return next((found for key in reversed(chain) if (found := self._sessions.get(key))), None)

    def _extend(self, session: _TrackedSession[Key], chain: Sequence[Key]) -> None:
        session.chain = chain
        for key in chain:
            owner = self._sessions.setdefault(key, session)
            if owner is session:
                session.keys[key] = None
            elif owner is not None:
                owner.keys.pop(key, None)
                self._sessions[key] = None

    def _mark_left(self, session: _TrackedSession[Key]) -> None:
        if session.was_left:
            return
        session.was_left = True
        self._num_left += 1
        if self._num_returned + 1 < _MAX_RETURNS * (self._num_left + 2):
            for key in session.keys:
                self._subtract_from_last_use(key, _LEFT_SECONDS)

    def _subtract_from_last_use(self, key: Key, seconds: float) -> None:
        entry = self._idle.get(key)
        if entry is not None:
            self._push(entry[0] - seconds, entry[1], key)

    def _push(self, last_use: float, number: int, key: Key) -> None:
        entry = self._idle[key] = (last_use, number, key)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._idle) + _MAX_STALE_ENTRIES:
            # Entries of removed keys leave the heap only when they are popped.
            self._heap = list(self._idle.values())
            heapq.heapify(self._heap)

    def add(self, key: Key) -> None:
        session = self._sessions.get(key)
        last_use = self._now
        if session is not None:
            last_use = session.last_use - self._pauses[session.awaits_user].median()
        self._num_added += 1
        self._push(last_use, self._num_added, key)

    def remove(self, key: Key) -> None:
        del self._idle[key]

    def pop(self) -> Key:
        while self._heap:
            entry = heapq.heappop(self._heap)
            key = entry[2]
            if self._idle.get(key) is entry:
                del self._idle[key]
                session = self._sessions.pop(key, None)
                if session is not None:
                    session.keys.pop(key, None)
                return key
        raise LookupError

    def restore(self, key: Key) -> None:

        self._num_added += 1
        self._push(self._now, self._num_added, key)

    def __deepcopy__(self, memo: object) -> "SessionPolicy[Key]":
        copied = SessionPolicy[Key](self._max_keys // _MAX_KEYS_PER_BLOCK)
        copied._now, copied._num_added = self._now, self._num_added
        copied._idle, copied._heap = dict(self._idle), self._heap.copy()
        return copied
