"""Embedders: they turn texts into vectors of length 1."""

import copy
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvproxy.index.errors import EmbedderError, first_line

DEFAULT = "default"


class Embedder(Protocol):
    """What the semantic cache needs of an embedding model."""

    name: str
    """Names the vectors. Vectors are compared only with those of the same name, so another model needs another name."""
    dim: int

    @property
    def vocabulary(self) -> Container[str] | None:
        """The words of its tokenizer, if that was made from English text alone: most other words are not among them."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """`[len(texts), dim]` float32, each row of unit length."""

    def reads(self, text: str) -> bool:
        """Whether the vector depends on all of the text. It does not if the text is too long or has unknown letters."""


class SentenceEmbedder:
    """A user's sentence-transformers model on the CPU or, where there is one, the GPU."""

    def __init__(self, name: str, model: Any) -> None:
        # The same folder or id may hold another model tomorrow.
        self.name = f"{name}#{_fingerprint(model)}"
        self._model = model
        # The model changes its tokenizer's settings while it embeds, so `reads` needs a copy of its own.
        self._tokenizer = copy.deepcopy(model.tokenizer)
        self.dim = int(model.get_embedding_dimension())
        self.vocabulary: Container[str] | None = None

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self._model.encode(
            list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        return np.asarray(vectors, dtype=np.float32)

    def reads(self, text: str) -> bool:
        tokens = self._tokenizer(text, verbose=False)["input_ids"]
        longest = self._model.max_seq_length
        unknown = getattr(self._tokenizer, "unk_token_id", None)
        return (longest is None or len(tokens) <= longest) and unknown not in tokens


def _fingerprint(model: Any) -> str:
    """A digest of the weights of a torch model."""
    import torch
    import xxhash

    digest = xxhash.xxh3_64()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


def usable_vectors(embedder: Embedder, texts: Sequence[str]) -> list[np.ndarray | None]:
    """The vector of each text, `[dim]` float32 of length 1; None if the embedder's vector cannot be compared.

    Raises:
        EmbedderError: the embedder failed, or did not give one vector of its width for each text.
    """
    try:
        vectors = np.asarray(embedder.embed(texts), dtype=np.float32)
    except Exception as error:
        raise EmbedderError(f"embedder {embedder.name!r} failed: {error or type(error).__name__}") from error
    if vectors.shape != (len(texts), embedder.dim):
        raise EmbedderError(
            f"embedder {embedder.name!r} made an array of shape {vectors.shape} of {len(texts)} texts, where"
            f" ({len(texts)}, {embedder.dim}) was expected: check the model"
        )
    # A vector that holds NaN would count as close to every other one.
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    usable = np.isfinite(lengths) & (lengths > 1e-6)
    return [
        (vector if abs(length - 1) < 1e-3 else (vector / length).astype(np.float32)) if fine else None
        for vector, length, fine in zip(vectors, lengths, usable, strict=True)
    ]


def load_embedder(name: str = DEFAULT, data: Path | None = None, threads: int | None = None) -> Embedder:
    """An embedder by name.

    Args:
        name: `default` for the packaged all-MiniLM-L6-v2 in ONNX Runtime, else a folder or a sentence-transformers id.
        data: the folder of all state. The packaged model's finished graph is kept there if the user's cache folder
            cannot be written to.
        threads: number of threads of the packaged model; by default one for each core.

    Raises:
        EmbedderError: it cannot be loaded; the message names the fix.
    """
    if name == DEFAULT:
        from kvproxy.index.models.minilm.embedder import MiniLMEmbedder
        from kvproxy.index.models.minilm.files import graph_files

        return MiniLMEmbedder(files=graph_files(data), threads=threads)
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    from kvproxy.index.models.minilm.shipped import refuse_pickles

    logging.disable_progress_bar()
    try:
        refuse_pickles(Path(name))
        return SentenceEmbedder(name, SentenceTransformer(name, model_kwargs={"use_safetensors": True}))
    except (OSError, ValueError) as error:
        raise EmbedderError(
            f"cannot load embedder {name!r} ({first_line(error)}): give a folder, a cached sentence-transformers id, or 'default'"
        ) from None
