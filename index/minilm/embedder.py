"""The packaged all-MiniLM-L6-v2 as an embedder in ONNX Runtime."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kvproxy.index.minilm.graph import embedder_graph
from kvproxy.index.minilm.session import keeps_integers, open_session
from kvproxy.index.minilm.tokens import load_tokenizer, look_up
from kvproxy.index.minilm.weights import RANGES, WIDTH, base_weights, packaged_model, read_tensors

MAX_TOKENS = 256
# The verifier reads as many of two questions together.
_MAX_READ = MAX_TOKENS // 2


class MiniLMEmbedder:
    """Texts to unit vectors; one text is computed on the calling thread, several on as many threads as there are cores.

    Its 8-bit vectors differ a little from the model's own (docs/verifier.md gives the measured difference), so that they
    are stored under another name.

    Args:
        integers: compute in 8 bits; by default wherever the processor does so exactly, else in float32.

    Raises:
        EmbedderError: the package is missing or its weights are others.
    """

    dim = WIDTH

    def __init__(self, integers: bool | None = None) -> None:
        integers = keeps_integers() if integers is None else integers
        folder = packaged_model()
        weights = base_weights(folder)
        ranges = read_tensors(RANGES)[0] if integers else None
        self.name = "all-MiniLM-L6-v2-int8" if integers else "all-MiniLM-L6-v2"
        self._session = open_session(embedder_graph(weights, ranges))
        self._tables = {name: table for name, table in weights.items() if name.startswith("embeddings.")}
        self._tokenizer = load_tokenizer(folder, MAX_TOKENS)
        self._unknown = self._tokenizer.token_to_id("[UNK]")

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """`[len(texts), 384]` float32 of unit length; a text's vector does not depend on the others'."""
        if len(texts) < 2:
            return np.array([self._one(text) for text in texts], dtype=np.float32).reshape(-1, WIDTH)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return np.stack(list(pool.map(self._one, texts)))

    def reads(self, text: str) -> bool:
        ids = self._tokenizer.encode(text).ids
        return len(ids) <= _MAX_READ and self._unknown not in ids

    def _one(self, text: str) -> np.ndarray:
        encoded = self._tokenizer.encode(text)
        tokens = look_up(self._tables, encoded.ids, encoded.type_ids)
        vector: np.ndarray = self._session.run(None, {"tokens": tokens})[0][0]
        return vector
