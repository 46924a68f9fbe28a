"""The engine's interface for an event loop, and the thread on which the engine runs."""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from kvproxy.apis.codecs.generation import Delta, GenerationRequest
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.events import AllBlocksCleared
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.engine.core import EngineCore
from kvproxy.engine.event_publisher import KVEventPublisher
from kvproxy.engine.models.loader import LoadedModel, load_model
from kvproxy.engine.models.lora import LoraManager
from kvproxy.engine.step_errors import StepFailed, error_for_client, first_line, is_device_error
from kvproxy.engine.text.tokenizer import AsyncTokenizer
from kvproxy.errors import KvproxyError, ModelUnsupported, Overloaded, TierUnavailable
from kvproxy.privacy.encryption import Cipher
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.chunk_store import TierError, TierStats

T = TypeVar("T")
Job = Callable[[], None]
Send = Callable[[Delta | KvproxyError], None]
FAILURE_THRESHOLD = 3
_STALL_POLL_SECONDS = 0.1
_log = logging.getLogger(__name__)


class AsyncLLM:
    """The engine's interface for callers on an event loop.

    Attributes:
        tokenizer: for the engine's thread only; other callers use `async_tokenizer`.
        adapters: by the name of each LoRA adapter, its name and the digest of its weights (`CacheRequest.lora`).
        on_finished: receives the last delta of each sequence, on the event loop.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: EngineSettings,
        tiers: TierSettings = TierSettings(),
        cipher: Cipher | None = None,
    ) -> None:
        self.name = loaded.name
        self.tokenizer = loaded.tokenizer
        self.default_sampling_params = loaded.default_sampling_params
        self._engine = EngineCore(loaded, settings, tiers, cipher)
        self._thread = EngineThread(self._engine, settings)
        limits = self._engine.limits
        self.max_model_len = limits.max_model_len
        self.token_capacity = limits.token_capacity
        self.num_blocks = self._engine.manager.pool.num_blocks
        self.block_size = self._engine.manager.block_size
        self.block_bytes = self._engine.block_bytes
        self.adapters = {name: (name, adapter.digest) for name, adapter in self._engine.adapters.items()}
        self.publisher = self._thread.publisher
        self.async_tokenizer = AsyncTokenizer(
            loaded.tokenizer, lambda num_tokens: limits.validate_length(num_tokens, 0, is_minimum=True)
        )
        self.on_finished: Callable[[Delta], None] = lambda last: None

    @classmethod
    def load(
        cls, settings: EngineSettings, model: str, tiers: TierSettings = TierSettings(), cipher: Cipher | None = None
    ) -> "AsyncLLM":
        if settings.lora and settings.quantization == "int8":
            raise ModelUnsupported(
                "LoRA adapters need plain weights: remove engine.quantization = int8 or the adapters"
            )

        def create() -> AsyncLLM:
            if settings.threads:
                torch.set_num_threads(settings.threads)
            loaded = load_model(model, settings.device, settings.dtype, quantization=settings.quantization)
            if settings.lora:
                loaded = replace(loaded, adapters=LoraManager(loaded.model, settings.lora))
            return cls(loaded, settings, tiers, cipher)

        # OpenMP keeps worker threads until the computing thread exits. With more threads than cores, GNU OpenMP stops
        # spinning between parallel regions, and a step takes 1.5 times as long.
        with ThreadPoolExecutor(1, "kvproxy-load") as thread:
            return thread.submit(create).result()

    async def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Stop after the current step. Unfinished requests receive an error."""
        self.async_tokenizer.close()
        await asyncio.to_thread(self._thread.stop)

    @property
    def failure(self) -> str | None:
        """The reason why no request can be served, or None. Any thread may read it."""
        return self._thread.failure

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Stream the deltas of the request's `n` sequences. Closing the iterator aborts the request.

        Raises:
            InvalidRequest: a value is out of range.
            ContextTooLong: prompt and output exceed the limit of the model or the block pool.
            Overloaded: the engine failed or stopped.
        """
        self._engine.limits.validate(request)
        if request.grammar is not None:
            # Compiling a large schema takes a second: do not block the engine's thread.
            await asyncio.to_thread(self._engine.grammars.create_matcher, request.grammar)
        loop = asyncio.get_running_loop()
        deltas: asyncio.Queue[Delta | KvproxyError] = asyncio.Queue()

        def send(delta: Delta | KvproxyError) -> None:
            loop.call_soon_threadsafe(deltas.put_nowait, delta)

        self._thread.submit(request, send)
        num_unfinished = request.sampling.n
        try:
            while num_unfinished:
                delta = await deltas.get()
                if isinstance(delta, KvproxyError):
                    raise delta
                if delta.finish_reason is not None:
                    num_unfinished -= 1
                    self.on_finished(delta)
                yield delta
        finally:
            self._thread.abort(request, send)

    async def inspect(self, read: Callable[[KVCacheManager], T]) -> T:
        """Call `read` on the engine's thread between two steps, and return its result."""
        return await self._run_between_steps(lambda: read(self._engine.manager))

    async def access_pins(self, access: Callable[[Pins], T]) -> T:
        return await self._run_between_steps(lambda: access(self._engine.pins))

    async def _run_between_steps(self, call: Callable[[], T]) -> T:
        result: Future[T] = Future()

        def job() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                self._engine.pins.expire()
                result.set_result(call())
            except Exception as error:
                result.set_exception(error)

        self._thread.run_between_steps(job)
        return await asyncio.wrap_future(result)

    async def match_tiers(self, request: CacheRequest, num_pool_tokens: int) -> dict[str, int]:
        """Return how many prompt tokens each tier could add to the first `num_pool_tokens`, which are in the pool."""
        tiers = self._engine.tiers
        if tiers is None:
            return {}
        chunks = await self.inspect(lambda manager: tiers.missing_chunks(request, num_pool_tokens))
        added: dict[str, int] = {}
        for key, num_tokens in chunks:
            name = await asyncio.to_thread(tiers.chain.find_tier, key)
            if name is None:
                break
            added[name] = added.get(name, 0) + num_tokens
        return added

    @property
    def num_tier_hits(self) -> int | None:
        """Number of prompt tokens that the tiers supplied; None without tiers."""
        return self._engine.tiers.num_hit_tokens if self._engine.tiers else None

    def tier_stats(self) -> list[TierStats]:
        return self._engine.tiers.chain.stats() if self._engine.tiers else []

    def tier_failures(self) -> dict[str, str]:
        return {tier.name: tier.failure for tier in self.tier_stats() if tier.failure is not None}

    async def clear_tier(self, name: str) -> int | None:
        if self._engine.tiers is None:
            return None
        try:
            return await asyncio.to_thread(self._engine.tiers.chain.clear, name)
        except TierError as error:
            raise TierUnavailable(f"tier {name} was not cleared: {error}; try again") from None


class EngineThread:
    """The thread that runs the engine's steps. All other calls of the engine run on it between two steps."""

    def __init__(self, engine: EngineCore, settings: EngineSettings) -> None:
        self.fatal_error: str | None = None  # the reason why the thread computes no more steps
        self._engine = engine
        self._num_threads = settings.threads
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvproxy-engine", daemon=True)
        self._live: dict[str, Send] = {}
        self._num_failed_steps = 0
        self._last_error = ""
        if engine.tiers is not None:
            engine.tiers.wake = lambda: self._jobs.put(lambda: None)
        self.publisher: KVEventPublisher | None = None
        if settings.kv_events is not None:
            self.publisher = KVEventPublisher(
                settings.kv_events,
                settings.kv_replay,
                topic=settings.kv_topic,
                buffer=settings.kv_buffer,
                request_snapshot=lambda: self._jobs.put(self._publish_snapshot),
            )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
        if self.publisher is not None:
            self.publisher.close()

    @property
    def failure(self) -> str | None:
        if self.fatal_error is not None or self._num_failed_steps < FAILURE_THRESHOLD:
            return self.fatal_error
        return (
            f"the last {self._num_failed_steps} steps of the engine failed ({self._last_error}): see the server's log"
        )

    def run_between_steps(self, job: Job) -> None:
        """Enqueue a job, which must not block for long. Raises Overloaded if the thread does not run."""
        if not self._thread.is_alive():
            raise Overloaded("the engine is not running: start the server again")
        self._jobs.put(job)

    def submit(self, request: GenerationRequest, send: Send) -> None:
        """Enqueue a request. `send` receives its deltas, or its error, and must not block."""

        def add_request() -> None:
            try:
                if self.fatal_error is not None:
                    raise Overloaded(self.fatal_error)
                self._engine.add_request(request, send, send)
                self._live[request.id] = send
            except KvproxyError as error:
                send(error)
            except Exception as error:
                send(error_for_client(error))
                raise

        self.run_between_steps(add_request)

    def abort(self, request: GenerationRequest, send: Send) -> None:
        """Abort an unfinished request that was submitted with the same `send`."""

        def abort() -> None:
            # A refused request may have the same id.
            if self._live.get(request.id) is send:
                del self._live[request.id]
                self._engine.abort(request.id)

        self._jobs.put(abort)

    def _run(self) -> None:
        if self._num_threads:
            torch.set_num_threads(self._num_threads)
        try:
            while self._run_jobs():
                self._step()
                self._publish_events()
            self._set_fatal("the server is shutting down")
        except Exception as error:
            _log.exception("the engine's thread stopped")
            self._set_fatal(f"the engine's thread stopped ({first_line(error)}): start the server again")
        self._fail_all(Overloaded(self.fatal_error or ""))
        self._engine.close()

    def _run_jobs(self) -> bool:
        engine = self._engine
        while not (self._jobs.empty() and engine.has_work and not engine.is_stalled):
            try:
                # A hanging load puts no job, so poll its deadline.
                job = self._jobs.get(timeout=_STALL_POLL_SECONDS if engine.is_stalled else None)
            except queue.Empty:
                continue
            if job is None:
                return False
            try:
                job()
            except Exception:
                _log.exception("a job on the engine's thread failed")
            self._publish_events()
        return True

    def _step(self) -> None:
        try:
            if self._engine.step():
                self._num_failed_steps = 0
        except Exception as error:
            self._num_failed_steps += 1
            self._last_error = first_line(error)
            if isinstance(error, StepFailed):
                _log.exception("a step failed; its requests were aborted")
                return
            _log.exception("the engine failed; all requests were aborted and the prefix cache was cleared")
            if is_device_error(error):
                self._set_fatal(f"the device failed ({first_line(error)}): start the server again")
            self._fail_all(error_for_client(error))

    def _set_fatal(self, reason: str) -> None:
        self.fatal_error = self.fatal_error or reason

    def _fail_all(self, error: KvproxyError) -> None:
        callbacks, self._live = self._live, {}
        try:
            self._engine.fail_all(error)
        except Exception as second:
            _log.exception("the engine was not cleared")
            self._set_fatal(f"the engine failed ({first_line(second)}): start the server again")
        for send in callbacks.values():
            with contextlib.suppress(RuntimeError):  # The client's event loop is closed.
                send(error)

    def _publish_events(self) -> None:
        if self.publisher is None:
            return
        try:
            if events := self._engine.manager.take_events():
                self.publisher.publish(events)
        except Exception:
            _log.exception("KV events were not published; subscribers lack them until they request a snapshot")

    def _publish_snapshot(self) -> None:
        self._publish_events()
        if self.publisher is not None:
            self.publisher.publish([AllBlocksCleared(), *self._engine.manager.snapshot()])
