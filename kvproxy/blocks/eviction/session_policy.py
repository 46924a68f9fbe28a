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

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.blocks.eviction.free_queues import Key

PauseClass = tuple[str, ...]
"""A class of pauses. Each element narrows it: `()` has all pauses, `("tool",)` the pauses for a tool, and `("tool", "<16")`
the pauses for a tool after a previous pause of less than 16 seconds."""

_NUM_BINS = 18
# Seconds: [0, 1), [1, 2), [2, 4), and so on. The last bin has no end.
_WIDTHS = [1.0] + [2.0**number for number in range(_NUM_BINS - 1)]
_PRIOR_RETURNS = 3.0  # weight of the prior rate in each bin
_MAX_PAUSES = 20_000  # Then all counts are halved, so that the rates follow the traffic.
_SHARED: PauseClass = ()
_SUPERSEDED: PauseClass = ("superseded",)
_LEFT: PauseClass = ("left",)
_RARE = {"superseded": 0.05, "left": 0.05}
_PAUSE_BOUNDS = (16.0, 64.0, 256.0)
_UPDATE_STEP = 16  # minimum number of requests between two updates of the rates
_MAX_CLIENTS = 10_000
_MAX_KEYS_PER_BLOCK = 4  # including hashes of evicted blocks


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Start or end of a request: time and client."""

    seconds: float  # Time of any clock.
    client: str | None = None
    awaits_user: bool = False  # The response calls no tool, so the client's next request waits for a person.


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
            self._rates.update((session.pause, self._now - session.last_use) for session in self._sessions)
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

    def _extend(self, session: _TrackedSession[Key], chain: Sequence[Key], num_common: int, use: CacheUse) -> None:
        session.chain, session.last_use = chain, self._now
        session.pause = ("user" if use.awaits_user else "tool", _pause_bucket(session.last_pause))
        self._sessions[session] = None
        self._sessions.move_to_end(session)
        for key in chain[num_common:]:
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
                rank = (self._rates.gittins_index(pause, self._now - start), start)
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


class ReturnRates:
    """Rates at which paused sessions return, by class of pause. A session pauses between two requests.

    The Gittins index of a pause is the maximum, over all time limits, of the probability of a return within the limit,
    divided by the expected wait. The session with the lowest index loses its blocks first. The prior rates of a class are
    the rates of the class without its last element, such as `()` for `("left",)`. `prior_factors` multiply the prior rates
    of classes with one element.
    """

    def __init__(self, prior_factors: dict[str, float]) -> None:
        self._prior_factors = prior_factors
        # Numbers of pauses by age: ended by a return, no longer observed, and current.
        self._returned, self._censored, self._current = (_counts_by_class() for _ in range(3))
        self._rates: dict[PauseClass, list[float]] = {}
        self._indexes: dict[PauseClass, list[float]] = {}
        self._num_pauses = 0

    def record(self, pause: PauseClass, age: float, *, returned: bool) -> None:
        """Record the end of a pause after `age` seconds: the session returned, or it is no longer observed."""
        for depth in range(len(pause) + 1):
            (self._returned if returned else self._censored)[pause[:depth]][_age_bin(age)] += 1
        self._num_pauses += 1
        if self._num_pauses >= _MAX_PAUSES:
            self._num_pauses //= 2
            for counts in (*self._returned.values(), *self._censored.values()):
                counts[:] = [count / 2 for count in counts]

    def update(self, current_pauses: Iterable[tuple[PauseClass, float]]) -> None:
        """Update the rates from the recorded pauses and the current ones, given as pairs of class and age in seconds."""
        self._current.clear()
        self._rates.clear()
        self._indexes.clear()
        for pause, age in current_pauses:
            for depth in range(len(pause) + 1):
                self._current[pause[:depth]][_age_bin(age)] += 1

    def gittins_index(self, pause: PauseClass, age: float) -> float:
        """Return the Gittins index of a pause of `age` seconds. The lowest index is evicted first."""
        indexes = self._indexes.get(pause)
        if indexes is None:
            indexes = self._indexes[pause] = _gittins_indexes(self._return_rates(pause))
        return indexes[_age_bin(age)]

    def _return_rates(self, pause: PauseClass) -> list[float]:
        known_rates = self._rates.get(pause)
        if known_rates is not None:
            return known_rates
        # Without measurements, the rate is inversely proportional to the age, which is the order of LRU.
        prior = self._return_rates(pause[:-1]) if pause else [0.5 / width for width in _WIDTHS]
        scale = self._prior_factors.get(pause[0], 1.0) if len(pause) == 1 else 1.0
        returned, censored, current = self._returned[pause], self._censored[pause], self._current[pause]
        rates = self._rates[pause] = [0.0] * _NUM_BINS
        longer = 0.0
        for number in range(_NUM_BINS - 1, -1, -1):
            ended = returned[number] + censored[number] + current[number]
            seconds = _WIDTHS[number] * (longer + ended / 2)
            prior_seconds = _PRIOR_RETURNS / (scale * prior[number])
            rates[number] = (returned[number] + _PRIOR_RETURNS) / (seconds + prior_seconds)
            longer += ended
        return rates


def _counts_by_class() -> defaultdict[PauseClass, list[float]]:
    return defaultdict(lambda: [0.0] * _NUM_BINS)


def _age_bin(age: float) -> int:
    return min(_NUM_BINS - 1, int(age).bit_length())


def _gittins_indexes(rates: list[float]) -> list[float]:
    indexes = []
    for start in range(_NUM_BINS):
        waiting, returns, seconds, best = 1.0, 0.0, 0.0, 0.0
        for rate, width in zip(rates[start:], _WIDTHS[start:], strict=True):
            returned = -waiting * math.expm1(-rate * width)
            returns += returned
            seconds += returned / rate
            waiting -= returned
            best = max(best, returns / seconds)
        indexes.append(best)
    return indexes
