from collections.abc import Container
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvproxy.index.models.e5.tokenizer import UNKNOWN, UnigramTokenizer
from kvproxy.index.models.e5.weights import LAYERS, PACKAGED, E5File, installed_file, unpack
from kvproxy.index.models.embedder import ThreadedEmbedder
from kvproxy.index.models.minilm.graph_builder import code_digest, embedder_graph
from kvproxy.index.models.minilm.graph_files import GraphFiles, computes_int8_exactly, content_digest, graph_files
from kvproxy.index.models.minilm.weights import MATRICES, WIDTH

NAME = "multilingual-e5-small"
MEAN = Path(__file__).parent / "mean.npy"
"""File of the mean vector of questions in six languages, which `training.multilingual_mean` computes."""
_MAX_TOKENS = 256
_MAX_READ = _MAX_TOKENS // 2
_PREFIX = "query: "
_CACHED_TEXTS = 64
_RANGE = 3.0  # Assumed largest activation, for int8.


class MultilingualEmbedder(ThreadedEmbedder):
    """Embeds texts of about 100 languages.

    It subtracts the mean vector from each vector. Otherwise, all cosines would lie between 0.75 and 1.
    """

    dim = WIDTH
    vocabulary: Container[str] | None = None

    def __init__(self, int8: bool | None = None, files: GraphFiles | None = None, threads: int | None = None) -> None:
        super().__init__(threads)
        files = files or graph_files()
        int8 = computes_int8_exactly(files) if int8 is None else int8
        source = E5File(installed_file())
        widths = {matrix: WIDTH * (4 if matrix == "down" else 1) for matrix in MATRICES}
        channels = {f"layer.{layer}.{name}": width for layer in range(LAYERS) for name, width in widths.items()}
        ranges = {name: np.full(width, _RANGE) for name, width in channels.items()} if int8 else None
        self.name = f"{NAME}-int8.1" if int8 else f"{NAME}.1"
        source_digest = content_digest(ranges or {}, PACKAGED, code_digest())
        self._session = files.open(NAME, source_digest, lambda: embedder_graph(source.weights(), ranges))
        self._words = source.packed_matrix("emb.word")
        self._positions = source.tensor("emb.pos").reshape(-1, WIDTH) + source.tensor("emb.type")[:WIDTH]
        self._ids = lru_cache(maxsize=_CACHED_TEXTS)(UnigramTokenizer(source).encode)
        self._mean = np.load(MEAN)

    def can_read(self, text: str) -> bool:
        ids = self._ids(_PREFIX + text)
        return len(ids) <= _MAX_READ and UNKNOWN not in ids

    def _embed_one(self, text: str) -> np.ndarray:
        ids = list(self._ids(_PREFIX + text)[:_MAX_TOKENS])
        tokens = unpack(self._words[ids]) + self._positions[: len(ids)]
        vector: np.ndarray = self._session.run(None, {"tokens": tokens[None]})[0][0] - self._mean
        vector /= np.linalg.norm(vector)
        return vector
