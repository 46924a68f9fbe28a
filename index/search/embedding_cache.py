"""Embedding of texts with a cache of recent vectors."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.embedder import Embedder, usable_vectors


class EmbeddingCache:
    """Embeds texts. Any thread may use it.

    Args:
        embedder: the model; runs on one thread at a time.
        size: number of cached vectors.
    """

    def __init__(self, embedder: Embedder, size: int = 4096) -> None:
        self.embedder = embedder
        self._vectors: OrderedDict[str, np.ndarray] = OrderedDict()
        self._size = size
        self._cache_lock = threading.Lock()
        self._model_lock = threading.Lock()

    def cached(self, text: str) -> np.ndarray | None:
        """Return the vector of a text that was embedded recently."""
        with self._cache_lock:
            vector = self._vectors.get(text)
            if vector is not None:
                self._vectors.move_to_end(text)
            return vector

    def vectors(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """Return a vector `[dim]` for each text; None if the vector is not finite or has no length.

        Raises:
            EmbedderError: the embedder failed.
        """
        with self._model_lock:
            found = {text: self.cached(text) for text in texts}
            missing = [text for text, vector in found.items() if vector is None]
            if missing:
                found |= zip(missing, usable_vectors(self.embedder, missing), strict=True)
        with self._cache_lock:
            for text in missing:
                if (vector := found[text]) is not None:
                    self._vectors[text] = vector
            while len(self._vectors) > self._size:
                self._vectors.popitem(last=False)
        return [found[text] for text in texts]

    def vector(self, text: str) -> np.ndarray:
        """Return the vector of a text, `[dim]` float32 of length 1.

        Raises:
            EmbedderError: the embedder failed, or its vector is not usable.
        """
        vector = self.cached(text)
        if vector is None:
            (vector,) = self.vectors([text])
        if vector is None:
            raise EmbedderError(f"embedder {self.embedder.name!r} returned an unusable vector: check the model")
        return vector

    def check(self) -> None:
        """Raise an EmbedderError if the embedder fails for every text."""
        with self._model_lock:
            usable_vectors(self.embedder, ["Does it work at all?"])
