"""The async face of an engine that runs on a thread of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins
from kvproxy.blocks.request import CacheRequest
from kvproxy.encryption import Cipher
from kvproxy.engine.core import EngineCore
from kvproxy.engine.engine_thread import EngineThread, run_on_temporary_thread
from kvproxy.engine.kv_connector.tier_connector import ModelScope
from kvproxy.engine.models.loader import LoadedModel, load_model
from kvproxy.engine.models.lora import LoraManager
from kvproxy.engine.text.async_tokenizer import AsyncTokenizer
from kvproxy.errors import KvproxyError, ModelUnsupported, TierUnavailable
from kvproxy.generation import Delta, GenerationRequest
from kvproxy.settings import EngineSettings, TierSettings
from kvproxy.tiers.store import TierError, TierStats

T = TypeVar("T")


class AsyncLLM:
    """Runs an engine.

    Args:
        loaded: the model.
        settings: sizes, limits and threads.
        tiers: what keeps keys and values beyond the pool.
        cipher: encrypts what the tiers keep outside of this process.

    Attributes:
        tokenizer: for the engine's own thread.
        async_tokenizer: for everybody else.
        sampling: what the model recommends.
        dtype: number format of the weights.
        adapters: what names the blocks of each LoRA adapter, by its name.
        observe: told of the last piece of each answer, on the event loop.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: EngineSettings,
        tiers: TierSettings | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        self.name = loaded.name
        self.tokenizer = loaded.tokenizer
        self.sampling = loaded.sampling
        self.dtype = loaded.dtype
        self._engine = EngineCore(loaded, settings, tiers or TierSettings(), cipher)
        self._thread = EngineThread(self._engine, settings)
        limits = self._engine.limits
        self.max_model_len = limits.max_model_len
        self.vocab_size = limits.vocab_size
        self.num_blocks = self._engine.manager.pool.num_blocks
        self.block_size = self._engine.manager.block_size
        self.block_bytes = self._engine.block_bytes
        self.adapters = {name: (name, adapter.digest) for name, adapter in self._engine.adapters.items()}
        self.publisher = self._thread.publisher
        self.async_tokenizer = AsyncTokenizer(
            loaded.tokenizer, lambda at_least: limits.check_length(at_least, 0, at_least=True)
        )
        self.observe: Callable[[Delta], None] = lambda last: None

    @classmethod
    def load(
        cls,
        settings: EngineSettings,
        model: str,
        tiers: TierSettings | None = None,
        cipher: Cipher | None = None,
        data: Path | None = None,
    ) -> "AsyncLLM":
        """A worker for `demo`, a folder or a Hugging Face id; `data` keeps which number format is fastest.

        Raises:
            ModelUnsupported: the model cannot be loaded or cannot share blocks.
        """
        if settings.lora and settings.weights == "int8":
            raise ModelUnsupported("LoRA adapters need plain weights: leave engine.weights = int8 out, or the adapters")

        def made() -> AsyncLLM:
            if settings.threads:
                # What is fastest depends on them.
                torch.set_num_threads(settings.threads)
            loaded = load_model(model, settings.device, settings.dtype, weights=settings.weights, remembered=data)
            if settings.lora:
                loaded = replace(loaded, adapters=LoraManager(loaded.model, settings.lora))
            return cls(loaded, settings, tiers, cipher)

        return run_on_temporary_thread(made)

    async def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its current step; requests under way get an error."""
        self.async_tokenizer.close()
        await asyncio.to_thread(self._thread.stop)

    @property
    def failure(self) -> str | None:
        """Why the engine gives no answers, in a sentence; None while it does. Safe to read from any thread."""
        return self._thread.health.failure

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Pieces of the answers, as they come. Closing the iterator cancels the request and frees its blocks.

        Raises:
            InvalidRequest: a value cannot be computed with.
            ContextTooLong: prompt and answer can never fit.
            Overloaded: the engine is dead, or failed or stopped while the request was under way.
        """
        self._engine.limits.check(request)
        if request.grammar is not None:
            # A large schema takes a second: not on the engine's thread, which then finds it ready.
            await asyncio.to_thread(self._engine.grammars.matcher, request.grammar)
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[Delta | KvproxyError] = asyncio.Queue()

        def send(piece: Delta | KvproxyError) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        self._thread.submit(request, send)
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
            self._thread.cancel(request, send)

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

        self._thread.put(job)
        return await result

    async def tier_match(self, request: CacheRequest, found: int) -> dict[str, int]:
        """Tokens that each tier would add to the `found` ones of the pool; loads nothing."""
        tiers = self._engine.tiers
        if tiers is None:
            return {}
        candidates = await self.inspect(lambda manager: tiers.candidates(request, found))
        added: dict[str, int] = {}
        for key, tokens in candidates:
            name = await asyncio.to_thread(tiers.chain.find_tier, key)
            if name is None:
                break
            added[name] = added.get(name, 0) + tokens
        return added

    def tier_figures(self) -> list[TierStats]:
        """Figures of each tier, the fastest first; none without tiers."""
        return self._engine.tiers.chain.stats() if self._engine.tiers else []

    async def clear_tier(self, name: str, models: ModelScope) -> int | None:
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


def _resolve(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
