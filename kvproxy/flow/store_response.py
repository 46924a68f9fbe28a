"""Keeps answers: only complete, successful ones, under the names of the request."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvproxy.apis.json import JsonObject, dumps
from kvproxy.apis.reported_usage import reported_reuse
from kvproxy.apis.request import ApiRequest
from kvproxy.flow.backend_response import Source
from kvproxy.flow.keys import CacheKey
from kvproxy.flow.learn import Observer
from kvproxy.flow.outcome import PrefixUse
from kvproxy.flow.upstream_directives import Directives, first, read_directives
from kvproxy.ids import Ids
from kvproxy.index.coming import Coming
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.lookup import Lookup
from kvproxy.index.response_cache import ResponseCache
from kvproxy.journal.draft import Draft
from kvproxy.journal.journal import Journal
from kvproxy.settings import CacheSettings

_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with its names.

    Attributes:
        cacheable: whether an equal request may be given the same answer.
        draft: its record, as far as it goes.
        spare: the stored answer to an equal request that is past its time, for the case that no other can be had.
        near: what was found of similar questions, whose answers the fresh one may be compared with.
    """

    request: ApiRequest
    key: CacheKey
    cacheable: bool
    draft: Draft
    spare: Entry | None = None
    near: Lookup | None = None


class Shelf:
    """Where answers are kept.

    Args:
        cache: the stored responses.
        settings: what may be kept and for how long.
        backend: name of what computes the answers.
        clock: seconds since the epoch.
        observer: compares fresh answers with similar ones; None to learn nothing.
        journal: is told what was stored.
    """

    def __init__(
        self,
        cache: ResponseCache,
        settings: CacheSettings,
        backend: str,
        clock: Callable[[], float],
        observer: Observer | None,
        journal: Journal,
    ) -> None:
        self._cache = cache
        self.settings = settings
        self._backend = backend
        self._clock = clock
        self._observer = observer
        self._journal = journal
        self._ids = Ids()

    def lifetime(self, request: ApiRequest, said: Directives = Directives()) -> float:
        """Seconds that an answer is served: those that the request asks for, as far as it may, or those of its rule.

        Args:
            said: what its upstream says, which goes before the settings.
        """
        asked, ruled = request.control.ttl, request.control.ruled.ttl
        if asked is None and ruled is not None:
            return ruled
        usual = first((ruled, said.max_age), self.settings.ttl)
        longest = usual if self.settings.max_ttl is None else self.settings.max_ttl
        return min(usual if asked is None else asked, longest)

    async def put(self, asked: Asked, whole: JsonObject, said: Directives) -> Coming | None:
        """Begin to keep an answer, and have it compared with that of a similar question once it is stored.

        Nobody waits here until it is, unless too many others are on their way. What must not be stored may take a while to be
        found out, where that is asked: it is waited for, so that a client is told what becomes of its answer.

        Args:
            said: what its upstream says of its keeping.

        Returns:
            The answer on its way; None where it is not kept.
        """
        entry = self._entry(asked, whole, said)
        if entry is None:
            return None
        near, observer, crowded = asked.near, self._observer, self._cache.coming.full
        late = near is not None and near.skipped
        told = partial(observer.compare, asked.request, entry, late=True) if late and observer is not None else None
        coming = self._cache.begin(entry, late=late, told=told)
        coming.task.add_done_callback(partial(self._landed, asked, entry))
        await coming.entry(self.settings.budget)
        if crowded:
            await self._cache.coming.room()
        return coming

    def _landed(self, asked: Asked, entry: Entry, task: "asyncio.Task[bool]") -> None:
        """The way of an entry is over."""
        error = None if task.cancelled() else task.exception()
        # Of a store that fails there is one line in the log already, for all answers.
        if error is not None and not isinstance(error, CacheStoreError):
            _log.error("the answer was not stored: %s", error or type(error).__name__)
        if task.cancelled() or error is not None or not task.result():
            return
        self._journal.kept(entry)
        if self._observer is not None and asked.near is not None and not asked.near.skipped:
            self._observer.compare(asked.request, entry, asked.near)

    def _entry(self, asked: Asked, whole: JsonObject, said: Directives) -> Entry | None:
        """What is to be kept of an answer; None where nothing is."""
        request, key, now = asked.request, asked.key, self._clock()
        if not request.api.keeps(whole, request.body):
            return None
        ruled, usual, lifetime = request.control.ruled, self.settings, self.lifetime(request, said)
        stale_while = first((ruled.stale_while_revalidate, said.stale_while_revalidate), usual.stale_while_revalidate)
        stale_error = first((ruled.stale_if_error, said.stale_if_error), usual.stale_if_error)
        if lifetime + stale_while + stale_error <= 0:
            return None
        prompt_tokens, completion_tokens = request.api.usage(whole)
        entry = Entry(
            id=self._ids.new(),
            key=key.exact,
            namespace=key.namespace,
            tenant=request.tenant,
            model=request.model,
            endpoint=request.api.name,
            prompt=key.text or key.prompt,
            semantic=key.text is not None and self._cache.searches and ruled.semantic,
            request=request.raw,
            response=dumps(whole),
            created=now,
            expires=now + lifetime,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            tags=tuple(sorted({*request.control.tags, *said.tags})) if said.tags else request.control.tags,
            backend=self._backend,
            request_id=request.request_id,
            stale_while_revalidate=stale_while,
            stale_if_error=stale_error,
        )
        return entry if self._cache.store.takes(entry) else None


class FlightKeeper:
    """Keeps the answer of one flight; see `flights.Keeper`."""

    def __init__(self, shelf: Shelf, asked: Asked, *, keep: bool) -> None:
        self.limit = shelf.settings.max_response_bytes
        self._shelf = shelf
        self._asked = asked
        self._keep = keep

    def push(self, source: Source, chunk: bytes) -> bool:
        if self._reads(source):
            complete = source.said.push(chunk)
        else:
            complete = False
            if source.streams and source.status == 200:
                source.said.listen(chunk)
        source.prefix = source.said.reused or source.prefix
        return complete

    def _reads(self, source: Source) -> bool:
        """Whether all that it says matters: to keep it, to tell in the header what was reused, or to know what it cost."""
        told = (source.streams or source.prefix is not None) and self._asked.request.account is None
        return self._keeps(source) or (source.status == 200 and not told)

    def _keeps(self, source: Source) -> bool:
        return self._keep and source.status == 200 and not source.private

    async def finish(self, source: Source) -> Coming | None:
        try:
            whole = await source.said.whole() if self._reads(source) else None
            if whole is not None:
                source.usage = self._asked.request.api.usage(whole)
            self._tell(source, whole)
            if whole is None or not self._keeps(source):
                return None
            return await self._shelf.put(self._asked, whole, read_directives(source.headers))
        except Exception as error:
            # Whatever keeps an answer out of the cache must not keep it from the client.
            _log.error("the answer was not stored: %s", error or type(error).__name__)
            return None

    def _tell(self, source: Source, whole: JsonObject | None) -> None:
        """Take down what the upstream says that it reused."""
        if source.prefix is None and whole is not None and (told := reported_reuse(whole)) is not None:
            source.prefix = PrefixUse(*told)
        if source.prefix is not None and source.served_by is not None:
            source.served_by.report_reuse(
                self._asked.request.model, source.prefix.prompt_tokens, source.prefix.cached_tokens
            )
