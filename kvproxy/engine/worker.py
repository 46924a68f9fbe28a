"""The engine on a thread of its own, with an async face.

Everything that touches the engine runs on that thread, between steps: submitting, cancelling, inspecting.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.snapshot import take_snapshot
from kvproxy.engine.engine import Engine
from kvproxy.engine.models import LoadedModel, load_model
from kvproxy.engine.tiering import Models
from kvproxy.errors import KvproxyError, Overloaded, TierUnavailable
from kvproxy.generation import Delta, GenerationRequest
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.store import TierError

if TYPE_CHECKING:
    from kvproxy.engine.publisher import KVEventPublisher

T = TypeVar("T")
Job = Callable[[], None]
_log = logging.getLogger(__name__)
_LOOK = 0.1


class EngineWorker:
    """Runs an engine.

    Args:
        loaded: the model.
        settings: sizes, limits and threads.
        tiers: what keeps keys and values beyond the pool.
    """

    def __init__(self, loaded: LoadedModel, settings: EngineSettings, tiers: TierSettings | None = None) -> None:
        self.name = loaded.name
        self.tokenizer = loaded.tokenizer
        self.sampling = loaded.sampling
        self._engine = Engine(loaded, settings, tiers or TierSettings())
        self.max_model_len = self._engine.max_model_len
        self.vocab_size = self._engine.vocab_size
        self.num_blocks = self._engine.manager.pool.num_blocks
        self.block_size = self._engine.manager.block_size
        self._threads = settings.threads
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvproxy-engine", daemon=True)
        if self._engine.tiers is not None:
            self._engine.tiers.wake = lambda: self._jobs.put(_nothing)
        self.observe: Callable[[Delta], None] = lambda last: None
        """Told of the last piece of each answer, on the event loop."""
        self._failures: dict[str, Callable[[KvproxyError], None]] = {}
        self.publisher = _publisher(settings, lambda: self._jobs.put(self._publish_all))

    @classmethod
    def load(cls, settings: EngineSettings, model: str, tiers: TierSettings | None = None) -> "EngineWorker":
        """A worker for `demo`, a folder or a Hugging Face id.

        Raises:
            ModelUnsupported: the model cannot be loaded or cannot share blocks.
        """
        return cls(load_model(model, settings.device, settings.dtype), settings, tiers)

    async def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its current step; requests under way get an error."""
        if self._thread.is_alive():
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)
        if self.publisher is not None:
            await asyncio.to_thread(self.publisher.close)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Pieces of the answers, as they come. Closing the iterator cancels the request and frees its blocks.

        Raises:
            ContextTooLong: prompt and answer can never fit.
            Overloaded: the engine failed or stopped while the request was under way.
        """
        self._engine.check(request)
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[Delta | KvproxyError] = asyncio.Queue()

        def send(piece: Delta | KvproxyError) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def submit() -> None:
            self._failures[request.id] = send
            try:
                self._engine.submit(request, send)
            except Exception:
                send(Overloaded("the engine failed on this request: see the server's log"))
                raise

        def cancel() -> None:
            self._failures.pop(request.id, None)
            self._engine.cancel(request.id)

        self._put(submit)
        open_answers = request.sampling.n
        try:
            while open_answers:
                piece = await pieces.get()
                if isinstance(piece, KvproxyError):
                    raise piece
                if piece.finish_reason is not None:
                    open_answers -= 1
                    self.observe(piece)
                yield piece
        finally:
            self._jobs.put(cancel)

    async def inspect(self, read: Callable[[KVCacheManager], T]) -> T:
        """What `read` returns for the block cache, on the engine's thread between steps."""
        return await self._between_steps(lambda: read(self._engine.manager))

    async def pins(self, change: Callable[[Pins], T]) -> T:
        """What `change` returns for the pinned chains, on the engine's thread between steps."""
        return await self._between_steps(lambda: change(self._engine.pins))

    async def _between_steps(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                self._engine.pins.expire()
                value = call()
            except Exception as error:
                loop.call_soon_threadsafe(_fail, result, error)
            else:
                loop.call_soon_threadsafe(_resolve, result, value)

        self._put(job)
        return await result

    async def tier_match(self, request: CacheRequest, found: int) -> dict[str, int]:
        """Tokens that each tier would add to the `found` ones of the pool; loads nothing."""
        tiers = self._engine.tiers
        if tiers is None:
            return {}
        candidates = await self.inspect(lambda manager: tiers.candidates(request, found))
        added: dict[str, int] = {}
        for key, tokens in candidates:
            name = await asyncio.to_thread(tiers.chain.where, key)
            if name is None:
                break
            added[name] = added.get(name, 0) + tokens
        return added

    def tier_stats(self) -> list[dict[str, Any]]:
        """Figures of each tier, the fastest first."""
        return self._engine.tiers.chain.stats() if self._engine.tiers else []

    async def clear_tier(self, name: str, models: Models) -> int | None:
        """Drop chunks of a tier, see `Tiering.clear`.

        Raises:
            TierUnavailable: the tier failed.
        """
        if self._engine.tiers is None:
            return None
        try:
            return await asyncio.to_thread(self._engine.tiers.clear, name, models)
        except TierError as error:
            raise TierUnavailable(f"tier {name} was not cleared: {error}; try again") from None

    def _put(self, job: Job) -> None:
        if not self._thread.is_alive():
            raise Overloaded("the engine is not running: start the server again")
        self._jobs.put(job)

    def _run(self) -> None:
        import torch

        if self._threads:
            torch.set_num_threads(self._threads)
        while self._take_jobs():
            try:
                self._engine.step()
            except Exception:
                _log.exception("a step failed; its requests are dropped and the prefix cache is reset")
                self._drop("the engine failed on this request: see the server's log")
            self._publish()
        self._drop("the server is shutting down")
        self._engine.close()

    def _take_jobs(self) -> bool:
        """Run what came in since the last step, waiting for something while there is no work; False to end."""
        engine = self._engine
        while not (self._jobs.empty() and engine.has_work and not engine.is_stalled):
            try:
                # A load that hangs wakes nobody, so its deadline must be looked at.
                job = self._jobs.get(timeout=_LOOK if engine.is_stalled else None)
            except queue.Empty:
                continue
            if job is None:
                return False
            try:
                job()
            except Exception:
                _log.exception("a job on the engine's thread failed")
            self._publish()
        return True

    def _publish(self) -> None:
        """Tell subscribers what changed, a batch a step."""
        if self.publisher is not None and (events := self._engine.manager.take_events()):
            self.publisher.publish(events)

    def _publish_all(self) -> None:
        """Tell a late subscriber what is cached."""
        self._publish()
        if self.publisher is not None:
            self.publisher.publish_all(take_snapshot(self._engine.manager).events)

    def _drop(self, message: str) -> None:
        for request_id in self._engine.fail():
            send = self._failures.pop(request_id, None)
            if send is not None:
                send(Overloaded(message))


def _nothing() -> None:
    """A job that only wakes the engine's thread."""


def _publisher(settings: EngineSettings, on_short: Job) -> "KVEventPublisher | None":
    if settings.kv_events is None:
        return None
    from kvproxy.engine.publisher import KVEventPublisher

    return KVEventPublisher(
        settings.kv_events,
        settings.kv_replay,
        topic=settings.kv_topic,
        buffer=settings.kv_buffer,
        on_short=on_short,
    )


def _resolve(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
