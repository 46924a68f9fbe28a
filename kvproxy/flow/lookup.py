"""What the cache has for a request: the answer to an equal one, or to a similar question."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from kvproxy.apis.json import as_object, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.flow import trail
from kvproxy.flow.backend_response import EVENTS, JSON
from kvproxy.flow.outcome import Answer, Match, Outcome, Stale
from kvproxy.flow.store_response import Asked
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError, EmbedderError
from kvproxy.index.redactor import RedactionFailed
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.lookup import FRESH, KEPT, Lookup
from kvproxy.settings import CacheSettings

_SLOW_BYTES = 64 * 1024
"""From here on a replay takes long enough to leave the event loop."""
_SHARE = 0.9
"""Of the time that a client gives: what a fresh answer may take where a stored one can stand in for it."""
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
        self.stale: Counter[str] = Counter()
        """Answers that were given past their time."""

    async def equal(self, asked: Asked) -> tuple[Answer | None, Entry | None]:
        """The stored answer of an equal request; or, where that is past its time, what is stored."""
        try:
            entry = await self._cache.find(asked.key.exact)
            asked.draft.looked = time.perf_counter()
            if entry is not None and entry.expires <= self._clock():
                return None, entry
            if entry is not None and self._young(entry, asked.request):
                return await self._hit(asked, entry, None), None
            asked.draft.late = entry is not None
        except CacheStoreError:
            # Without its cache a proxy is slower, not broken. The store has said so, once for all requests.
            asked.draft.lost = True
        except Exception:
            # An imported answer that is none.
            _log.exception("lookup failed, the request is forwarded")
            asked.draft.lost = True
        return None, None

    async def once_more(self, asked: Asked) -> Answer | None:
        """The answer of an equal request that may be given while it is computed anew."""
        if asked.spare is None or self._stale(asked.spare, asked) != "stale-while-revalidate":
            return None
        return await self._spared(asked, asked.spare, "stale-while-revalidate")

    def patience(self, asked: Asked) -> float | None:
        """Seconds after which a stored answer stands in, since the client's time is nearly over; None where none can."""
        timeout = asked.request.control.timeout
        if timeout is None or asked.spare is None or self._stale(asked.spare, asked, failed=True) is None:
            return None
        return max(0.0, _SHARE * timeout - (time.perf_counter() - asked.draft.began))

    async def in_stead(self, asked: Asked) -> Answer | None:
        """What may be given where no answer can be had: that of an equal request, else that of a similar question."""
        if asked.draft.passed is not None or not asked.cacheable:
            return None
        if asked.spare is not None and self._stale(asked.spare, asked, failed=True) is not None:
            hit = await self._spared(asked, asked.spare, "stale-if-error")
        else:
            hit, _ = await self.similar(asked, failed=True)
        return hit

    async def _spared(self, asked: Asked, spare: Entry, stale: Stale) -> Answer | None:
        try:
            return await self._hit(asked, spare, None, stale)
        except Exception:
            # An imported answer that is none.
            _log.exception("a stored answer cannot be given")
            asked.draft.lost = True
        return None

    def _stale(self, entry: Entry, asked: Asked, *, failed: bool = False) -> Stale | None:
        """Why an entry that is past its time may be given; None where it may not.

        Args:
            failed: no other answer can be had.
        """
        control, now = asked.request.control, self._clock()
        freshness = entry.freshness(now)
        if freshness in ("fresh", "over"):
            return None
        if not failed:
            # Who says how old an answer may be wants none that is past its time.
            return (
                "stale-while-revalidate" if freshness == "stale-while-revalidate" and control.max_age is None else None
            )
        if control.stale_if_error is None:
            return "stale-if-error" if control.max_age is None else None
        return "stale-if-error" if now - entry.expires <= control.stale_if_error else None

    async def similar(self, asked: Asked, *, failed: bool = False) -> tuple[Answer | None, Lookup | None]:
        """The answer to a similar question; without one, those whose answers a fresh one may be compared with.

        Args:
            failed: no fresh answer can be had, so that one past its time may do.
        """
        request, key = asked.request, asked.key
        if asked.draft.lost or not request.control.ruled.semantic:
            return None, None
        try:
            if self._semantic is None or key.text is None or not await self._cache.compares(key.text):
                return None, None
            # Who takes no other answer than a cached one has nothing else to wait for.
            seconds = None if failed or request.control.only_if_cached else self._settings.budget
            lookup = await self._semantic.lookup(
                key.namespace,
                key.text,
                limits=request.control.limits,
                seconds=seconds,
                explore=not failed,
                served=KEPT if failed else FRESH,
                policy=request.control.ruled.policy,
            )
            asked.draft.judged, asked.draft.lookup = time.perf_counter(), lookup
            self.outcomes[lookup.outcome] += 1
            entry = lookup.entry
            if entry is None or self._settings.shadow:
                return None, lookup
            stale = self._stale(entry, asked, failed=failed)
            if stale is None and not (entry.expires > self._clock() and self._young(entry, request)):
                return None, lookup
            if self._semantic.learning is not None:
                self._semantic.learning.served(lookup)
            return await self._hit(asked, entry, _match(lookup), stale), None
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

    async def _hit(self, asked: Asked, entry: Entry, match: Match | None, stale: Stale | None = None) -> Answer:
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
            ttl=entry.expires - now,
            stale=stale,
            tokens=entry.completion_tokens,
            match=match,
        )
        if stale is not None:
            self.stale[stale] += 1
            asked.draft.stale = stale
        trail.hit(asked.draft, outcome, entry)
        return Answer(200, headers, body, outcome)


def _match(lookup: Lookup) -> Match:
    chosen = lookup.chosen
    assert chosen is not None
    return Match(chosen.similarity, None if chosen.score == chosen.similarity else chosen.score, chosen.error)


def _replayed(request: ApiRequest, entry: Entry) -> bytes:
    return b"".join(request.api.replay(as_object(loads(entry.response)), request.body))
