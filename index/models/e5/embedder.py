"""multilingual-e5-small as an embedder in ONNX Runtime, for about 100 languages."""

import os
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvproxy.index.models.e5.tokenizer import UNKNOWN, UnigramTokenizer
from kvproxy.index.models.e5.weights import LAYERS, PACKAGED, installed_file, read_file, unpack
from kvproxy.index.models.minilm.graph_builder import code_digest, embedder_graph
from kvproxy.index.models.minilm.graph_files import GraphFiles, computes_int8_exactly, digest_of, graph_files
from kvproxy.index.models.minilm.weights import MATRICES, WIDTH, Weights

NAME = "multilingual-e5-small"
MEAN = Path(__file__).parent / "mean.npy"
"""Mean vector of questions in six languages, by `training.multilingual_mean`."""
MAX_TOKENS = 256
_MAX_READ = MAX_TOKENS // 2
_PREFIX = "query: "
_CACHED_TEXTS = 64
_RANGE = 3.0


class MultilingualEmbedder:
    """Embeds texts of about 100 languages. One text is computed on the calling thread, several on a thread pool.

    All vectors of this model are close to their mean, with cosines from 0.75 to 1. The mean is subtracted, so that the
    defaults for cosines hold.
    """

    dim = WIDTH
    vocabulary: Container[str] | None = None

    def __init__(
        self, integers: bool | None = None, files: GraphFiles | None = None, threads: int | None = None
    ) -> None:
        files = files or graph_files()
        integers = computes_int8_exactly(files) if integers is None else integers
        source = read_file(installed_file())
        self.name = f"{NAME}-int8.1" if integers else f"{NAME}.1"
        ranges = _ranges() if integers else None
        source_digest = digest_of(ranges or {}, PACKAGED, code_digest())
        self._session = files.open("multilingual", source_digest, lambda: embedder_graph(source.weights, ranges))
        self._words, self._positions = source.words, source.positions[:MAX_TOKENS]
        self._tokenizer = UnigramTokenizer(source.pieces, source.scores, source.replacements)
        self._mean = np.load(MEAN).astype(np.float32)
        self._threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._threads, "kvproxy-embed")
        self._ids = lru_cache(maxsize=_CACHED_TEXTS)(self._ids_of)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, `[len(texts), 384]` float32. A vector does not depend on the other texts."""
        if len(texts) < 2 or self._threads == 1:
            return np.array([self._one(text) for text in texts], dtype=np.float32).reshape(-1, WIDTH)
        return np.stack(list(self._pool.map(self._one, texts)))

    def can_read(self, text: str) -> bool:
        ids = self._ids(text)
        return len(ids) <= _MAX_READ and UNKNOWN not in ids

    def _ids_of(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(_PREFIX + text))

    def _one(self, text: str) -> np.ndarray:
        ids = self._ids(text)[:MAX_TOKENS]
        tokens = unpack(self._words[list(ids)]).reshape(len(ids), WIDTH) + self._positions[: len(ids)]
        vector: np.ndarray = self._session.run(None, {"tokens": tokens[None]})[0][0] - self._mean
        vector /= np.linalg.norm(vector)
        return vector


def _ranges() -> Weights:
    """Return equal ranges for all channels. With measured ones, the vectors are not closer to those of float32."""
    width = {"down": 4 * WIDTH}
    names = ((layer, matrix) for layer in range(LAYERS) for matrix in MATRICES)
    return {f"layer.{n}.{matrix}": np.full(width.get(matrix, WIDTH), _RANGE, np.float32) for n, matrix in names}
