import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.encryption import Cipher
from kvproxy.engine.core import EngineCore
from kvproxy.engine.engine_thread import EngineThread
from kvproxy.engine.kv_connector.tier_connector import ModelScope
from kvproxy.engine.models.loader import LoadedModel, load_model
from kvproxy.engine.models.lora import LoraManager
from kvproxy.engine.text.async_tokenizer import AsyncTokenizer
from kvproxy.errors import KvproxyError, ModelUnsupported, TierUnavailable
from kvproxy.generation import Delta, GenerationRequest
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.chunk_store import TierError, TierStats

T = TypeVar("T")


class AsyncLLM:
    """The engine's interface for callers on an event loop.

    Attributes:
        tokenizer: for the engine's thread only; other callers use `async_tokenizer`.
        adapters: name and digest of each LoRA adapter, by its name (`CacheRequest.lora`).
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
        cls,
        settings: EngineSettings,
        model: str,
        tiers: TierSettings = TierSettings(),
        cipher: Cipher | None = None,
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
        """Why no request can be served, or None. Any thread may read it."""
        return self._thread.health.failure

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

    def tier_stats(self) -> list[TierStats]:
        return self._engine.tiers.chain.stats() if self._engine.tiers else []

    async def clear_tier(self, name: str, models: ModelScope) -> int | None:
        if self._engine.tiers is None:
            return None
        try:
            return await asyncio.to_thread(self._engine.tiers.clear, name, models)
        except TierError as error:
            raise TierUnavailable(f"tier {name} was not cleared: {error}; try again") from None
