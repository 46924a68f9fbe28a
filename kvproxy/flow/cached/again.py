"""Answers a request that equals one of a moment ago, byte for byte: neither is it read again, nor is its answer looked up."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from kvproxy.apis.request import ApiRequest
from kvproxy.flow.cached.keep import Asked
from kvproxy.flow.outcome import Outcome
from kvproxy.flow.recording import trail
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.response_cache import ResponseCache
from kvproxy.journal.draft import Draft
from kvproxy.journal.hits import Kind, equal_of
from kvproxy.journal.journal import Journal


@dataclass(slots=True)
class Again:
    """What it takes to give an exact hit once more.

    Attributes:
        asked: the request that was answered.
        entry: the stored answer.
        version: of the store when the entry was last seen there; None before it was looked for.
        kind: of its hits.
    """

    asked: Asked
    entry: Entry
    version: int | None = None
    kind: Kind = field(init=False)

    def __post_init__(self) -> None:
        self.kind = Kind(equal_of(self.request.tenant, self.request, self.asked.key.exact, self.entry))

    @property
    def request(self) -> ApiRequest:
        return self.asked.request

    def outcome(self, now: float) -> Outcome:
        """What becomes of a request that is answered with the entry."""
        return Outcome(
            "exact", entry=self.entry.id, age=max(0.0, now - self.entry.created), ttl=self.entry.expires - now
        )

    def update(self, entry: Entry, version: int) -> None:
        """The entry as it is in a version of the store."""
        self.entry, self.version = entry, version
        self.__post_init__()


class Repeater:
    """Gives exact hits once more, as long as what is stored has not changed.

    Args:
        cache: the stored responses.
        journal: gets a record of each.
        clock: seconds since the epoch.
    """

    def __init__(self, cache: ResponseCache, journal: Journal, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._store = cache.store
        self._journal = journal
        self._clock = clock

    def give(self, again: Again, request_id: bytes) -> bool:
        """Count and record a request that is answered once more; False where its answer may not be given."""
        began, now, entry = perf_counter(), self._clock(), again.entry
        if not entry.created <= now < entry.expires or not self._stands(again):
            return False
        self._store.touch(entry.id)
        # It is answered as soon as it is found.
        seconds = perf_counter() - began
        if not self._journal.repeated(again.kind, now, request_id, seconds):
            self._record(again, request_id.decode("latin-1"), now, began)
        return True

    def _record(self, again: Again, request_id: str, now: float, began: float) -> None:
        """Record a hit whose prompt the journal has forgotten."""
        request, key = again.request, again.asked.key
        draft = Draft(request.api.name, request_id, request.tenant, request, now)
        draft.key, draft.parts, draft.began, draft.looked = key.exact, key.parts, began, perf_counter()
        trail.hit(draft, again.outcome(now), again.entry)
        self._journal.add(draft)

    def _stands(self, again: Again) -> bool:
        """Whether the entry is what the store has for the request now."""
        key = again.asked.key.exact
        try:
            version = self._store.version()
            if version is None or self._cache.storing(key):
                return False
            if version != again.version:
                entry = self._store.find(key)
                if entry is None or entry.id != again.entry.id or entry.expires <= self._clock():
                    return False
                again.update(entry, version)
        except CacheStoreError:
            # The store has said so; the usual way tells what is to be done.
            return False
        return True
