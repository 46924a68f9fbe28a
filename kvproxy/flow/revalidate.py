"""Answers that were given past their time are computed anew, behind their clients' backs: one flight for each of them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kvproxy.apis.json import as_object, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.errors import KvproxyError
from kvproxy.flow import trail
from kvproxy.flow.keys import CacheKey
from kvproxy.flow.single_flight import Flight
from kvproxy.flow.store_response import Asked
from kvproxy.index.entry import Entry
from kvproxy.journal.draft import Draft
from kvproxy.journal.journal import Journal

_MOST = 64
"""Answers that are computed anew at a time; those beyond are when they are given the next time."""
_REST_SECONDS = 1.0
"""Where it failed, so long nobody tries again."""
_NAME = "renewal-"
"""What its request id begins with, before that of the request that got the old answer."""
_log = logging.getLogger("kvproxy")


class Renewals:
    """What is being computed anew.

    Args:
        board: joins the flight of a request, or begins one.
        key: the names of a request.
        journal: gets a record of each, so that one can see what they cost.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        board: Callable[[Asked], tuple[Flight, bool]],
        key: Callable[[ApiRequest], Awaitable[CacheKey]],
        journal: Journal,
        clock: Callable[[], float],
    ) -> None:
        self._board = board
        self._key = key
        self._journal = journal
        self._clock = clock
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self.counts: Counter[str] = Counter()
        """Renewals by what came of them: `renewed`, `failed`, and `left` for those that were too many."""

    def begin(self, asked: Asked, entry: Entry) -> None:
        """Have the answer of an entry computed anew for a request that got it, unless that is under way."""
        control = asked.request.control
        if entry.key in self._under_way or control.no_store or control.only_if_cached:
            return
        if len(self._under_way) >= _MOST:
            self.counts["left"] += 1
            return
        task = self._under_way[entry.key] = asyncio.create_task(self._renew(asked, entry))
        task.add_done_callback(lambda _: self._under_way.pop(entry.key, None))

    async def _renew(self, asked: Asked, entry: Entry) -> None:
        try:
            if await self._computed(await self._asked(asked, entry)):
                self.counts["renewed"] += 1
                return
        except KvproxyError as error:
            _log.debug("%s was not computed anew: %s", entry.id[:12], error.message)
        except Exception:
            # Nobody waits for it, so nobody else would tell.
            _log.exception("%s was not computed anew", entry.id[:12])
        self.counts["failed"] += 1
        await asyncio.sleep(_REST_SECONDS)

    async def _computed(self, asked: Asked) -> bool:
        """Have an answer computed, and stored as it passes; whether it is one. It leaves a record, as requests of clients do."""
        draft = asked.draft
        flight, joined = self._board(asked)
        try:
            async for _chunk in flight.chunks():
                """What it says is kept as it passes."""
            return flight.source is not None and flight.source.status < 400
        except BaseException as error:
            trail.failed(draft, error)
            raise
        finally:
            trail.renewed(draft, flight)
            flight.leave()
            # A client's own request that was under way has a record of its own.
            if not joined:
                self._journal.add(draft)

    async def _asked(self, asked: Asked, entry: Entry) -> Asked:
        """The request to send: the one that the entry answers, with the credentials of the one that got its answer."""
        tags = tuple(sorted({*asked.request.control.tags, *entry.tags}))
        control = replace(asked.request.control, tags=tags, confirm=False)
        request = replace(asked.request, control=control, request_id=_NAME + asked.request.request_id)
        if asked.key.exact != entry.key:
            try:
                own = replace(request, body=as_object(loads(entry.request)), raw=entry.request)
                key = await self._key(own)
            except (ValueError, KvproxyError):
                return self._begun(asked, request, asked.key)
            # What was redacted is another request now: then the answer to this one becomes a fresh neighbour.
            if key.exact == entry.key:
                return self._begun(asked, own, key)
        return self._begun(asked, request, asked.key)

    def _begun(self, asked: Asked, request: ApiRequest, key: CacheKey) -> Asked:
        """The request to send with a record of its own, whose trace is none of the client's."""
        shown = replace(request, trace=None)
        draft = Draft(request.api.name, request.request_id, request.tenant, shown, self._clock())
        draft.key, draft.parts = key.exact, key.parts
        return replace(asked, request=request, key=key, cacheable=True, draft=draft, spare=None, near=None)

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
