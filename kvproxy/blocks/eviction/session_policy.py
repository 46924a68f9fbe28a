"""Session-aware eviction: evict the idle block whose session is least likely to return soon.

A request continues a session (a conversation) if it begins with at least half of the session's last prompt and
response. The classes of idle blocks are:

- Waiting for a tool, or for a person; subdivided by the length of the session's previous pause.
- Superseded: the session's next request did not contain the block, because a turn was edited or compacted.
- Left: the client began another session.
- Shared by several sessions, such as a system prompt.

`ReturnRates` learns how soon the sessions of each class return. Within a class the order is LRU, so only the oldest
block of each class is compared.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.blocks.eviction.eviction_policy import CacheUse, Key
from kvproxy.blocks.eviction.session_return_rates import PauseClass, ReturnRates

_SHARED: PauseClass = ()
_SUPERSEDED: PauseClass = ("superseded",)
_LEFT: PauseClass = ("left",)
_RARE = {"superseded": 0.05, "left": 0.05}
_PAUSE_BOUNDS = (16.0, 64.0, 256.0)
_UPDATE_STEP = 16  # minimum number of requests between two updates of the rates
_MAX_CLIENTS = 10_000
_MAX_KEYS_PER_BLOCK = 4  # including hashes of evicted blocks


@dataclass(slots=True, eq=False)
class _TrackedSession(Generic[Key]):
    pause: PauseClass
    chain: Sequence[Key] = ()  # Empty for the superseded blocks of one request.
    keys: dict[Key, None] = field(default_factory=dict)
    last_use: float = 0.0
    last_pause: float | None = None


class SessionPolicy(Generic[Key]):
    """Session-aware eviction. If `begin` is never called, the order is LRU."""

    def __init__(self, capacity: int) -> None:
        self._rates = ReturnRates(_RARE)
        self._queues: dict[PauseClass, OrderedDict[Key, float]] = {}
        """Idle keys of each class with the start of their pauses, the oldest first."""
        self._idle: dict[Key, PauseClass] = {}
        self._source: tuple[OrderedDict[Key, float], float] | None = None
        """The queue to evict from, until its oldest key has another start than this."""
        self._max_keys = _MAX_KEYS_PER_BLOCK * capacity
        self._keys: dict[Key, _TrackedSession[Key] | None] = {}
        """The session of each key, or None for a key of several sessions."""
        self._sessions: OrderedDict[_TrackedSession[Key], None] = OrderedDict()
        self._current: OrderedDict[str, _TrackedSession[Key]] = OrderedDict()
        self._num_requests = 0
        self._next_update = _UPDATE_STEP
        self._now = 0.0

    def begin(self, chain: Sequence[Key], use: CacheUse) -> None:
        """Record the start of a request, before it receives new blocks. `chain` has the block hashes of its prompt."""
        self._set_time(use.seconds)
        self._num_requests += 1
        if self._num_requests >= self._next_update:
            self._next_update += max(_UPDATE_STEP, self._num_requests // 16)
            self._rates.update((each.pause, self._now - each.last_use) for each in self._sessions)
        session, shared = self._find_session(chain, use.client)
        if use.client is not None:
            last = self._current.get(use.client)
            if last is not None and last is not session and last.pause != _LEFT:
                self._mark_left(last)
        if session is None:
            session = _TrackedSession[Key](_SHARED)
        else:
            self._rates.record(session.pause, self._now - session.last_use, returned=True)
            session.last_pause = self._now - session.last_use
            superseded = [key for key in session.chain[shared:] if key in session.keys]
            if superseded:
                for key in superseded:
                    del session.keys[key]
                replaced = _TrackedSession[Key](_SUPERSEDED, keys=dict.fromkeys(superseded), last_use=session.last_use)
                self._sessions[replaced] = None
                self._keys.update(dict.fromkeys(superseded, replaced))
                self._requeue(replaced)
        if use.client is not None:
            self._current[use.client] = session
            self._current.move_to_end(use.client)
            if len(self._current) > _MAX_CLIENTS:
                self._current.popitem(last=False)
        self._extend(session, chain, shared, use)

    def end(self, chain: Sequence[Key], use: CacheUse) -> None:
        """Record the end of a request, before its blocks become idle. `chain` includes the response's block hashes."""
        self._set_time(use.seconds)
        session = self._latest_session(chain)
        if session is not None:
            self._extend(session, chain, common_prefix_length(session.chain, chain), use)

    def _set_time(self, seconds: float) -> None:
        self._now = max(self._now, seconds)
        self._source = None

    def _find_session(self, chain: Sequence[Key], client: str | None) -> tuple[_TrackedSession[Key] | None, int]:
        # The client's last session is known even if the policy forgot its blocks.
        for session in (self._current.get(client) if client is not None else None, self._latest_session(chain)):
            if session is not None:
                shared = common_prefix_length(session.chain, chain)
                if 2 * shared >= len(session.chain):
                    return session, shared
        return None, 0

    def _latest_session(self, chain: Sequence[Key]) -> _TrackedSession[Key] | None:
        for key in reversed(chain):
            session = self._keys.get(key)
            if session is not None and session.pause != _SUPERSEDED:
                return session
        return None

    def _extend(self, session: _TrackedSession[Key], chain: Sequence[Key], shared: int, use: CacheUse) -> None:
        session.chain, session.last_use = chain, self._now
        session.pause = ("user" if use.awaits_user else "tool", _pause_bucket(session.last_pause))
        self._sessions[session] = None
        self._sessions.move_to_end(session)
        for key in chain[shared:]:
            owner = self._keys.get(key, session)
            if owner is not None and owner.pause == _SUPERSEDED:
                if owner in self._sessions:
                    self._rates.record(_SUPERSEDED, self._now - owner.last_use, returned=True)
                    del self._sessions[owner]
                owner = session
            elif owner is not None and owner is not session:
                owner.keys.pop(key, None)
                owner = None
            self._keys[key] = owner
            if owner is session:
                session.keys[key] = None
        while max(len(self._keys), len(self._sessions)) > self._max_keys and len(self._sessions) > 1:
            self._forget(next(iter(self._sessions)))

    def _forget(self, session: _TrackedSession[Key]) -> None:
        del self._sessions[session]
        self._rates.record(session.pause, self._now - session.last_use, returned=False)
        for key in (*session.chain, *session.keys):
            if self._keys.get(key) in (session, None):
                self._keys.pop(key, None)
        session.chain = ()
        session.keys = {}

    def _mark_left(self, session: _TrackedSession[Key]) -> None:
        self._rates.record(session.pause, self._now - session.last_use, returned=False)
        session.pause = _LEFT
        self._requeue(session)

    def _requeue(self, session: _TrackedSession[Key]) -> None:
        for key in reversed(session.keys):
            if key in self._idle:
                self.remove(key)
                self._push(key, session.pause, session.last_use)

    def _push(self, key: Key, pause: PauseClass, start: float) -> None:
        self._source = None
        self._idle[key] = pause
        self._queues.setdefault(pause, OrderedDict())[key] = start

    def add(self, key: Key) -> None:
        session = self._keys.get(key)
        if session is None:
            self._push(key, _SHARED, self._now)
        else:
            self._push(key, session.pause, session.last_use)

    def remove(self, key: Key) -> None:
        del self._queues[self._idle.pop(key)][key]

    def pop(self) -> Key:
        queue = self._source[0] if self._source is not None else None
        if not queue or self._source is None or queue[next(iter(queue))] != self._source[1]:
            queue = self._select_queue()
        key, _ = queue.popitem(last=False)
        del self._idle[key]
        return key

    def _select_queue(self) -> OrderedDict[Key, float]:
        best: tuple[float, float] | None = None
        for pause, queue in self._queues.items():
            if queue:
                start = queue[next(iter(queue))]
                rank = (self._rates.index(pause, self._now - start), start)
                if best is None or rank < best:
                    best, self._source = rank, (queue, start)
        if best is None or self._source is None:
            raise LookupError
        return self._source[0]

    def restore(self, key: Key) -> None:
        self._push(key, _SHARED, self._now)

    def __deepcopy__(self, memo: object) -> "SessionPolicy[Key]":
        copied = SessionPolicy[Key](self._max_keys // _MAX_KEYS_PER_BLOCK)
        copied._now, copied._rates = self._now, self._rates
        copied._idle = dict(self._idle)
        copied._queues = {pause: queue.copy() for pause, queue in self._queues.items()}
        return copied


def _pause_bucket(seconds: float | None) -> str:
    if seconds is None:
        return "first"
    return next((f"<{bound:.0f}" for bound in _PAUSE_BOUNDS if seconds < bound), "longer")
