"""Texts to unit vectors."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from index.errors import EmbedderError

DEFAULT = "default"


class Embedder(Protocol):
    """What the semantic cache needs of an embedding model."""

    name: str
    dim: int

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """`[len(texts), dim]` float32, each row of unit length."""


class SentenceEmbedder:
    """A user's sentence-transformers model on the CPU or, where there is one, the GPU."""

    def __init__(self, name: str, model: Any) -> None:
        self.name = name
        self._model = model
        self.dim = int(model.get_embedding_dimension())

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._model.encode(
            list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        return np.asarray(vectors, dtype=np.float32)


def load_embedder(name: str = DEFAULT) -> Embedder:
    """An embedder by name.

    Args:
        name: `default` for the packaged all-MiniLM-L6-v2 in ONNX Runtime, else a folder or a sentence-transformers id.

    Raises:
        EmbedderError: it cannot be loaded; the message names the fix.
    """
    if name == DEFAULT:
        from index.minilm.embedder import MiniLMEmbedder

        return MiniLMEmbedder()
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return SentenceEmbedder(name, SentenceTransformer(name))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EmbedderError(
            f"cannot load embedder {name!r} ({reason}): give a folder, a cached sentence-transformers id, or 'default'"
        ) from None


class HashEmbedder:
    """A test double: texts that share words get vectors close together, always the same ones."""

    name = "hash"

    def __init__(self, dim: int = 64) -> None:
        self.dim = dim

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._one(text) for text in texts])

    def _one(self, text: str) -> np.ndarray:
        total = np.full(self.dim, 1e-3, dtype=np.float32)
        for word in text.lower().split():
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
            total += np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32)
        unit: np.ndarray = total / np.linalg.norm(total)
        return unit


class MicroBatcher:
    """Embeds for many callers at once: what arrives while a batch is computed becomes the next batch.

    Args:
        embedder: the model, called on one thread at a time.
        cache_size: recent texts whose vectors are kept.
    """

    def __init__(self, embedder: Embedder, cache_size: int = 4096) -> None:
        self.embedder = embedder
        self._cache: OrderedDict[str, np.ndarray] = OrderedDict()
        self._cache_size = cache_size
        self._waiting: dict[str, asyncio.Future[np.ndarray]] = {}
        self._running: asyncio.Task[None] | None = None

    async def embed(self, text: str) -> np.ndarray:
        """The vector of one text, `[dim]` float32 of unit length."""
        known = self._cache.get(text)
        if known is not None:
            self._cache.move_to_end(text)
            return known
        future = self._waiting.get(text)
        if future is None:
            future = self._waiting[text] = asyncio.get_running_loop().create_future()
            if self._running is None:
                self._running = asyncio.create_task(self._drain())
        return await asyncio.shield(future)

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, {}
            try:
                vectors = await asyncio.to_thread(self.embedder.embed, list(batch))
            except Exception as error:
                for future in batch.values():
                    future.set_exception(error)
                continue
            for (text, future), vector in zip(batch.items(), vectors, strict=True):
                self._cache[text] = vector
                future.set_result(vector)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        self._running = None
