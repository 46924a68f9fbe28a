"""Work of many callers done together: texts that share a run of the embedder, writes that share a transaction."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.embedder import Embedder, usable_vectors
from kvproxy.index.store import NewEntry, WriteResult

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_TEXTS = 8  # A lookup that finds the embedder busy waits for no more texts than this.
_MOST_WRITES = 256


class Batcher(Generic[Item, Result]):
    """Collects items while a batch is under way; they become the next batch.

    Args:
        work: computes one result for each item; called on one thread at a time, in the order of the items.
        most: items in one batch.
    """

    def __init__(self, work: Callable[[Sequence[Item]], Sequence[Result]], most: int) -> None:
        self._work = work
        self.most = most
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._under_way = 0
        self._running: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Items that wait or are worked on."""
        return len(self._waiting) + self._under_way

    def submit(self, item: Item) -> "asyncio.Future[Result]":
        """Add an item; the future gets its result, or the error of its own that `work` raised.

        Await it through `asyncio.shield`, so that a caller that leaves takes nobody along. An item whose future is cancelled
        before its batch begins is left out.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._drain())
        return future

    async def _drain(self) -> None:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        try:
            while self._waiting:
                wanted = [each for each in self._waiting if not each[1].done()]
                batch, self._waiting = wanted[: self.most], wanted[self.most :]
                self._under_way = len(batch)
                if batch and not await self._together(batch) and len(batch) > 1:
                    # One item that fails must not fail the others.
                    for each in batch:
                        if not each[1].done():
                            await self._together([each])
                self._under_way = 0
        finally:
            # A task that is cancelled, at a shutdown for instance, must leave nobody waiting.
            left, self._waiting, self._under_way = batch + self._waiting, [], 0
            for _, future in left:
                _fail(future, RuntimeError("the work was cancelled"))
            self._running = None

    async def _together(self, batch: list[tuple[Item, "asyncio.Future[Result]"]]) -> bool:
        """Work on a batch and tell its callers. False if a batch of several failed; then nobody is told."""
        try:
            results = await asyncio.to_thread(self._work, [item for item, _ in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results for {len(batch)} items")
        except Exception as error:
            if len(batch) == 1:
                _fail(batch[0][1], error)
            return False
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
        return True


def _fail(future: "asyncio.Future[Result]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Without this, asyncio warns about the exception if the caller has left.
        future.exception()


class MicroBatcher:
    """Embeds texts for many callers. Equal texts are embedded once, and recent vectors are kept.

    Args:
        embedder: the model; called on one thread at a time.
        cache_size: texts whose vectors are kept.
    """

    def __init__(self, embedder: Embedder, cache_size: int = 4096) -> None:
        self.embedder = embedder
        self._cache: OrderedDict[str, np.ndarray] = OrderedDict()
        self._cache_size = cache_size
        self._guard = threading.Lock()
        self._turn = threading.Lock()
        self._asked: dict[str, asyncio.Future[np.ndarray | None]] = {}
        self._batches: Batcher[str, np.ndarray | None] = Batcher(self.vectors, _MOST_TEXTS)

    def known(self, text: str) -> np.ndarray | None:
        """The vector of a text that was embedded lately."""
        with self._guard:
            vector = self._cache.get(text)
            if vector is not None:
                self._cache.move_to_end(text)
            return vector

    def vectors(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """The vectors of some texts, computed on the calling thread; None where one cannot be compared with others.

        Raises:
            EmbedderError: the embedder failed.
        """
        found = {text: self.known(text) for text in texts}
        missing = [text for text, vector in found.items() if vector is None]
        if missing:
            with self._turn:
                made = usable_vectors(self.embedder, missing)
            found |= dict(zip(missing, made, strict=True))
            self._keep(missing, made)
        return [found[text] for text in texts]

    def check(self) -> None:
        """Raises an EmbedderError where the embedder fails whatever it is asked."""
        with self._turn:
            usable_vectors(self.embedder, ["Does it work at all?"])

    def _keep(self, texts: Sequence[str], vectors: "Sequence[np.ndarray | None]") -> None:
        with self._guard:
            for text, vector in zip(texts, vectors, strict=True):
                if vector is not None:
                    self._cache[text] = vector
                    if len(self._cache) > self._cache_size:
                        self._cache.popitem(last=False)

    async def embed(self, text: str) -> np.ndarray:
        """The vector of one text, `[dim]` float32 of unit length.

        Raises:
            EmbedderError: the embedder failed, or its vector cannot be compared with others.
        """
        known = self.known(text)
        if known is not None:
            return known
        future = self._asked.get(text)
        if future is None:
            future = self._asked[text] = self._batches.submit(text)
            future.add_done_callback(lambda done: self._asked.pop(text))
        return comparable(await asyncio.shield(future), self.embedder)


def comparable(vector: np.ndarray | None, embedder: Embedder) -> np.ndarray:
    """A vector that an embedder made; raises an EmbedderError where it cannot be compared with others."""
    if vector is None:
        raise EmbedderError(f"embedder {embedder.name!r} made no vector that can be compared")
    return vector


class WriteBatcher:
    """Puts of many callers in few transactions: one commit to disk acknowledges them all.

    Args:
        write: writes puts, durable when it returns.
    """

    def __init__(self, write: Callable[[Sequence[NewEntry]], WriteResult]) -> None:
        self._write = write
        self._batches: Batcher[NewEntry, bool] = Batcher(self._kept, _MOST_WRITES)

    def _kept(self, puts: Sequence[NewEntry]) -> list[bool]:
        refused = {gone.id for gone in self._write(puts).gone}
        return [put.entry.id not in refused for put in puts]

    async def put(self, put: NewEntry) -> bool:
        """Whether an entry was kept, durable when this returns. False if it is larger than the store may be, or if one that was
        written with it took its place.

        Raises:
            CacheStoreError: it was not written.
        """
        return await asyncio.shield(self._batches.submit(put))
