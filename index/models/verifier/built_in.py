"""The built-in verifier: a cross-encoder with calibrated probabilities."""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvproxy.index.errors import EmbedderError, VerifierError
from kvproxy.index.models.minilm.graph_builder import code_digest, verifier_graph
from kvproxy.index.models.minilm.onnx_files import OnnxFiles, computes_int8_exactly, content_digest, default_onnx_files
from kvproxy.index.models.minilm.weights import (
    PACKAGED,
    Weights,
    averaging_matrix,
    base_weights,
    check_packaged_weights,
    embed_tokens,
    embedding_tables,
    load_tokenizer,
    merge_adapter,
    packaged_model,
    read_tensors,
)
from kvproxy.index.models.model_threads import model_pool
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, words

ADAPTER = Path(__file__).parent / "adapter.safetensors"
RANGES = "ranges."
ALONE = "alone"
MAX_TOKENS = 256
_CACHED_PAIRS = 4096
_LEAST_COSINE, _LEAST_LEVEL = 0.67, 0.8


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """Converts the logit of a pair to a probability: `sigmoid(slope * logit + cosine * c + offset)` for the pair's cosine `c`."""

    slope: float
    offset: float
    cosine: float = 0.0

    def probabilities(self, logits: np.ndarray, cosines: np.ndarray | None = None) -> np.ndarray:
        weighted = 0.0 if cosines is None else self.cosine * cosines.astype(np.float64)
        exponent = np.clip(self.slope * logits.astype(np.float64) + weighted + self.offset, -30, 30)
        return (1 / (1 + np.exp(-exponent))).astype(np.float32)


class BuiltInVerifier:
    """Scores a pair of questions, in alphabetical order, with a cross-encoder and Platt scaling.

    `adapter` has trained changes of MiniLM's weights (see `merge_adapter`), and the value range of each 8-bit layer.
    """

    def __init__(
        self, adapter: Weights, scaling: PlattScaling, int8: bool | None = None, files: OnnxFiles | None = None
    ) -> None:
        files = files or default_onnx_files()
        int8 = computes_int8_exactly(files) if int8 is None else int8
        folder = packaged_model()
        trained = {name: value for name, value in adapter.items() if not name.startswith(RANGES)}
        ranges = {name.removeprefix(RANGES): value for name, value in adapter.items() if name.startswith(RANGES)}

        def build() -> bytes:
            return verifier_graph(merge_adapter(base_weights(folder), trained), ranges if int8 else None)

        source_digest = content_digest(adapter, PACKAGED, code_digest(), "8 bits" if int8 else "float32")
        are_exact = int8 and computes_int8_exactly(files, narrow_sums=True)
        self._session = files.open("verifier", source_digest, build, narrow_sums=are_exact)
        tables = embedding_tables(folder)
        self._tables = merge_adapter(tables, {name: value for name, value in trained.items() if name in tables})
        self._tokenizer = load_tokenizer(folder, MAX_TOKENS)
        self._vocabulary = frozenset(self._tokenizer.get_vocab())
        self._scaling = scaling
        self._pool = model_pool("kvproxy-verify")
        # The lookup and the comparison of the responses score the same pair.
        self._cached_logit = lru_cache(_CACHED_PAIRS)(self._logit)

    @classmethod
    def load(cls, embedder: str | None = None, files: OnnxFiles | None = None) -> "BuiltInVerifier":
        if not ADAPTER.is_file():
            raise VerifierError(f"{ADAPTER} is missing: install kvproxy again, or name a CrossEncoder")
        try:
            check_packaged_weights(ADAPTER)
        except ValueError as error:
            raise VerifierError(str(error)) from None
        adapter, metadata = read_tensors(ADAPTER)
        try:
            return cls(adapter, read_scaling(metadata, embedder), files=files)
        except EmbedderError as error:
            raise VerifierError(str(error)) from None

    def can_read(self, text: str) -> bool:
        return is_english(text, self._vocabulary)

    def least_cosine(self, level: float) -> float:
        return _LEAST_COSINE if self._scaling.cosine and level >= _LEAST_LEVEL else 0.0

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray | None = None) -> np.ndarray:
        return self._scaling.probabilities(self.logits(pairs), cosines)

    def logits(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        ordered = [(min(pair), max(pair)) for pair in pairs]
        if len(pairs) < 2:
            return np.array([self._cached_logit(pair) for pair in ordered], dtype=np.float32)
        return np.array(list(self._pool.map(self._cached_logit, ordered)), dtype=np.float32)

    def _logit(self, pair: tuple[str, str]) -> float:
        encoded = self._tokenizer.encode(*pair)
        tokens = embed_tokens(self._tables, encoded.ids, encoded.type_ids)
        return float(self._session.run(None, {"tokens": tokens, "sides": averaging_matrix(encoded.type_ids)})[0].item())


def read_scaling(metadata: Mapping[str, str], embedder: str | None) -> PlattScaling:
    """Return the scaling for an embedder's cosines; for an unknown embedder, it ignores cosines. `metadata` is the adapter's."""
    scalings = json.loads(metadata["calibration"])
    family = (embedder or "").partition("-int8")[0]
    return PlattScaling(**scalings.get(family, scalings[ALONE]))


_LEAST = 0.8


def is_english(text: str, vocabulary: Container[str]) -> bool:
    """Whether at least 80% of a text's words are in the vocabulary; English function words count twice.

    One of three words, such as a product's name in a short question, may be unknown.
    """
    tokens = words(text)
    if not tokens:
        return True
    known = sum(all(part in vocabulary for part in word.split("'") if part) for word in tokens)
    function_words = sum(word in FUNCTION_WORDS for word in tokens)
    return (known + function_words) / len(tokens) >= _LEAST or len(tokens) - known <= 1 < len(tokens) - 1
