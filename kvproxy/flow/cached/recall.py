"""What the cache has for a request: the answer to an equal one, or to a similar question."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from kvproxy.apis.json import as_object, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.flow.cached.again import Again
from kvproxy.flow.cached.keep import Asked
from kvproxy.flow.flight.source import EVENTS, JSON
from kvproxy.flow.outcome import Answer, Match, Outcome
from kvproxy.flow.recording import trail
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError, EmbedderError
from kvproxy.index.lookup import Lookup
from kvproxy.index.redactor import RedactionFailed
from kvproxy.index.response_cache import ResponseCache
from kvproxy.settings import CacheSettings

_SLOW_BYTES = 64 * 1024
"""From here on a replay takes long enough to leave the event loop."""
_log = logging.getLogger("kvproxy")


class Recall:
    """Finds stored answers.

    Args:
        cache: stored responses, by exact key and by similar question.
        settings: how long a lookup may take, and what may be served.
        clock: seconds since the epoch.
    """

    def __init__(self, cache: ResponseCache, settings: CacheSettings, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._store = cache.store
        self._semantic = cache.semantic
        self._settings = settings
        self._clock = clock
        self.outcomes: Counter[str] = Counter()
        """Semantic lookups by what came of them."""

    async def equal(self, asked: Asked) -> Answer | None:
        """The stored answer of an equal request."""
        try:
            entry = await self._cache.find(asked.key.exact)
            asked.draft.looked = time.perf_counter()
            if entry is not None and self._young(entry, asked.request):
                return await self._hit(asked, entry, None)
            asked.draft.late = entry is not None
        except CacheStoreError:
            # Without its cache a proxy is slower, not broken. The store has said so, once for all requests.
            asked.draft.lost = True
        except Exception:
            # An imported answer that is none.
            _log.exception("lookup failed, the request is forwarded")
            asked.draft.lost = True
        return None

    async def similar(self, asked: Asked) -> tuple[Answer | None, Lookup | None]:
        """The answer to a similar question; without one, those whose answers a fresh one may be compared with."""
        request, key = asked.request, asked.key
        if asked.draft.lost or not request.control.semantic:
            return None, None
        try:
            if self._semantic is None or key.text is None or not await self._cache.compares(key.text):
                return None, None
            # Who takes no other answer than a cached one has nothing else to wait for.
            seconds = None if request.control.only_if_cached else self._settings.budget
            lookup = await self._semantic.lookup(
                key.namespace, key.text, limits=request.control.limits, seconds=seconds
            )
            asked.draft.judged, asked.draft.lookup = time.perf_counter(), lookup
            self.outcomes[lookup.outcome] += 1
            if lookup.entry is None or self._settings.shadow or not self._young(lookup.entry, request):
                return None, lookup
            if self._semantic.learning is not None:
                self._semantic.learning.served(lookup)
            return await self._hit(asked, lookup.entry, _match(lookup)), None
        except CacheStoreError:
            # The store has said so, once for all requests.
            pass
        except (EmbedderError, RedactionFailed) as error:
            _log.error("lookup failed, the request is forwarded: %s", error)
        except Exception:
            # A user's verifier that fails.
            _log.exception("lookup failed, the request is forwarded")
        asked.draft.lost = True
        return None, None

    def _young(self, entry: Entry, request: ApiRequest) -> bool:
        oldest = request.control.max_age
        return oldest is None or self._clock() - entry.created <= oldest

    async def _hit(self, asked: Asked, entry: Entry, match: Match | None) -> Answer:
        request, headers, body = asked.request, [JSON], entry.response
        if request.stream:
            headers = [EVENTS, ("cache-control", "no-cache")]
            if len(body) > _SLOW_BYTES:
                body = await asyncio.to_thread(_replayed, request, entry)
            else:
                body = _replayed(request, entry)
        self._store.touch(entry.id)
        now = self._clock()
        outcome = Outcome(
            "exact" if match is None else "semantic",
            entry=entry.id,
            age=max(0.0, now - entry.created),
            ttl=max(0.0, entry.expires - now),
            match=match,
        )
        trail.hit(asked.draft, outcome, entry)
        again = (
            Again(asked, entry)
            if match is None and request.control.max_age is None and request.account is None
            else None
        )
        return Answer(200, headers, body, outcome, again=again)


def _match(lookup: Lookup) -> Match:
    chosen = lookup.chosen
    assert chosen is not None
    return Match(chosen.similarity, None if chosen.score == chosen.similarity else chosen.score, chosen.error)


def _replayed(request: ApiRequest, entry: Entry) -> bytes:
    return b"".join(request.api.replay(as_object(loads(entry.response)), request.body))
