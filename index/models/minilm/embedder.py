"""Embeds texts with all-MiniLM-L6-v2 in ONNX Runtime."""

from collections.abc import Container
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.embedder import ThreadedEmbedder
from kvproxy.index.models.minilm.graph_builder import code_digest, embedder_graph
from kvproxy.index.models.minilm.onnx_files import OnnxFiles, computes_int8_exactly, content_digest, default_onnx_files
from kvproxy.index.models.minilm.weights import (
    PACKAGED,
    RANGES,
    WIDTH,
    Weights,
    base_weights,
    check_packaged_weights,
    embed_tokens,
    embedding_tables,
    load_tokenizer,
    packaged_model,
    read_tensors,
)

FLOAT32_NAME = "all-MiniLM-L6-v2"
INT8_NAME = "all-MiniLM-L6-v2-int8.4"
"""`Embedder.name` with int8. It ends in a version, because vectors with different rounding are not comparable."""
MAX_TOKENS = 256
_MAX_READ = MAX_TOKENS // 2
_CACHED_TEXTS = 64


def open_embedder(data_folder: Path | None, threads: int | None) -> "MiniLMEmbedder":
    return MiniLMEmbedder(files=default_onnx_files(data_folder), threads=threads)


class MiniLMEmbedder(ThreadedEmbedder):
    """Embeds texts with all-MiniLM-L6-v2 in ONNX Runtime: by default in int8 if `computes_int8_exactly`, or else in float32."""

    dim = WIDTH

    def __init__(self, int8: bool | None = None, files: OnnxFiles | None = None, threads: int | None = None) -> None:
        super().__init__(threads)
        files = files or default_onnx_files()
        int8 = computes_int8_exactly(files) if int8 is None else int8
        folder = packaged_model()
        ranges = _load_activation_ranges() if int8 else None
        self.name = INT8_NAME if int8 else FLOAT32_NAME
        source_digest = content_digest(ranges or {}, PACKAGED, code_digest())
        self._session = files.open(
            "embedder", source_digest, lambda: embedder_graph(base_weights(folder), ranges), narrow_sums=True
        )
        self._tables = embedding_tables(folder)
        self._tokenizer = load_tokenizer(folder, MAX_TOKENS)
        self.vocabulary: Container[str] = frozenset(self._tokenizer.get_vocab())
        # A text is checked before it is embedded.
        self._ids = lru_cache(maxsize=_CACHED_TEXTS)(self._token_ids)
        self._unknown = self._tokenizer.token_to_id("[UNK]")

    def can_read(self, text: str) -> bool:
        ids = self._ids(text)
        return len(ids) <= _MAX_READ and self._unknown not in ids

    def _token_ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text).ids)

    def _embed_one(self, text: str) -> np.ndarray:
        ids = self._ids(text)
        tokens = embed_tokens(self._tables, ids, [0] * len(ids))
        vector: np.ndarray = self._session.run(None, {"tokens": tokens})[0][0]
        return vector


def _load_activation_ranges() -> Weights:
    try:
        check_packaged_weights(RANGES)
    except (OSError, ValueError) as error:
        raise EmbedderError(str(error)) from None
    return read_tensors(RANGES)[0]
