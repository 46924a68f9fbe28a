"""The interface to embedders, those of sentence-transformers, and a cache of vectors."""

import copy
import threading
from collections import OrderedDict
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvproxy.index.doors import EMBEDDERS
from kvproxy.index.errors import EmbedderError, WrongDimension, first_line
from kvproxy.index.models.model_threads import model_pool, model_threads

DEFAULT = "default"
MULTILINGUAL = "multilingual"


class Embedder(Protocol):
    """Converts texts to vectors. Thread-safe. Only vectors of embedders with equal names are comparable."""

    name: str
    dim: int

    @property
    def vocabulary(self) -> Container[str] | None:
        """The vocabulary of an English tokenizer, to detect other languages; None for a tokenizer of several languages."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors, `[len(texts), dim]` float32."""

    def can_read(self, text: str) -> bool:
        """Whether a text is within the model's maximum length, and has no unknown tokens."""


class ThreadedEmbedder:
    """Base class that embeds several texts in parallel, by default on one thread per core."""

    dim: int

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or model_threads()
        self._pool = model_pool("kvproxy-embed", self._threads)

    def _embed_one(self, text: str) -> np.ndarray:
        raise NotImplementedError

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if len(texts) < 2 or self._threads == 1:
            return np.array([self._embed_one(text) for text in texts], dtype=np.float32).reshape(-1, self.dim)
        return np.stack(list(self._pool.map(self._embed_one, texts)))


class SentenceEmbedder:
    """A sentence-transformers model, on a GPU if available."""

    def __init__(self, name: str, model: Any) -> None:
        # The model in a folder may be replaced.
        self.name = f"{name}#{_fingerprint(model)}"
        self._model = model
        self._lock = threading.Lock()
        # `encode` changes the settings of the model's own tokenizer.
        self._tokenizer = copy.deepcopy(model.tokenizer)
        self.dim = int(model.get_embedding_dimension())
        self.vocabulary: Container[str] | None = None

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        with self._lock:
            vectors = self._model.encode(
                list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
            )
        return np.asarray(vectors, dtype=np.float32)

    def can_read(self, text: str) -> bool:
        tokens = self._tokenizer(text, verbose=False)["input_ids"]
        longest = self._model.max_seq_length
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        return (longest is None or len(tokens) <= longest) and unknown not in tokens


def _fingerprint(model: Any) -> str:
    import torch
    import xxhash

    digest = xxhash.xxh3_64()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


def embed_or_none(embedder: Embedder, texts: Sequence[str]) -> list[np.ndarray | None]:
    """Return the unit vector of each text, `[dim]` float32; None if the model's vector is zero or not finite."""
    try:
        vectors = np.asarray(embedder.embed(texts), dtype=np.float32)
    except Exception as error:
        raise EmbedderError(f"embedder {embedder.name!r} failed: {error or type(error).__name__}") from error
    if vectors.shape != (len(texts), embedder.dim):
        raise WrongDimension(
            f"embedder {embedder.name!r} returned an array of shape {vectors.shape} for {len(texts)} texts instead of"
            f" ({len(texts)}, {embedder.dim}): check the model"
        )
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    usable = np.isfinite(lengths) & (lengths > 1e-6)
    return [
        (vector if abs(length - 1) < 1e-3 else (vector / length).astype(np.float32)) if fine else None
        for vector, length, fine in zip(vectors, lengths, usable, strict=True)
    ]


def load_embedder(name: str = DEFAULT, data_folder: Path | None = None, threads: int | None = None) -> Embedder:
    """Load an embedder by name.

    Args:
        name: an embedder of `EMBEDDERS`, or a folder or id of a sentence-transformers model.
        data_folder: folder for the ONNX graph if the user's cache folder is not writable.

    Raises:
        EmbedderError, PluginError: the message names the fix.
    """
    if name in EMBEDDERS.names():
        embedder: Embedder = EMBEDDERS.create(name, data_folder, threads)
        return embedder
    from kvproxy.index.models.hugging_face_hub import must_load_from_cache
    from kvproxy.index.models.minilm.weights import check_model_source

    try:
        check_model_source(name)
        cached = must_load_from_cache(name)
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()
        options = {"use_safetensors": True}
        return SentenceEmbedder(name, SentenceTransformer(name, model_kwargs=options, local_files_only=cached))
    except (OSError, ValueError) as error:
        raise EmbedderError(
            f"cannot load embedder {name!r} ({first_line(error)}): give a folder, a cached sentence-transformers id, or 'default'"
        ) from None


class EmbeddingCache:
    """An LRU cache in front of an embedder. Thread-safe."""

    def __init__(self, embedder: Embedder, size: int = 4096) -> None:
        self.embedder = embedder
        self._vectors: OrderedDict[str, np.ndarray] = OrderedDict()
        self._size = size
        self._lock = threading.Lock()

    def get_cached(self, text: str) -> np.ndarray | None:
        with self._lock:
            vector = self._vectors.get(text)
            if vector is not None:
                self._vectors.move_to_end(text)
            return vector

    def vectors(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """Return the unit vectors of texts; None for a vector that is zero or not finite."""
        vectors = {text: self.get_cached(text) for text in texts}
        missing = [text for text, vector in vectors.items() if vector is None]
        if missing:
            vectors |= zip(missing, embed_or_none(self.embedder, missing), strict=True)
        with self._lock:
            for text in missing:
                if (vector := vectors[text]) is not None:
                    self._vectors[text] = vector
            while len(self._vectors) > self._size:
                self._vectors.popitem(last=False)
        return [vectors[text] for text in texts]

    def vector(self, text: str) -> np.ndarray:
        """Return the unit vector of a text, `[dim]` float32; raises an EmbedderError if it is zero or not finite."""
        vector = self.get_cached(text)
        if vector is None:
            (vector,) = self.vectors([text])
        if vector is None:
            raise EmbedderError(f"embedder {self.embedder.name!r} returned an unusable vector: check the model")
        return vector

    def check_embedder(self) -> None:
        embed_or_none(self.embedder, ["Does it work at all?"])
