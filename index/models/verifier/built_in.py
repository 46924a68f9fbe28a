"""The built-in verifier: the packaged MiniLM with a trained adapter, in ONNX Runtime."""

import hashlib
import json
import os
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvproxy.index.errors import EmbedderError, VerifierError
from kvproxy.index.models.minilm.graph_builder import code_digest, verifier_graph
from kvproxy.index.models.minilm.graph_files import GraphFiles, computes_int8_exactly, digest_of, graph_files
from kvproxy.index.models.minilm.packaged_digests import check_packaged_weights
from kvproxy.index.models.minilm.weights import (
    PACKAGED,
    Weights,
    averaging_matrix,
    base_weights,
    load_tokenizer,
    look_up,
    lookup_tables,
    merge,
    packaged_model,
    read_tensors,
)
from kvproxy.index.policies.guards.tokenization import words
from kvproxy.index.policies.guards.word_lists import FUNCTION_WORDS

ADAPTER = Path(__file__).parent / "adapter.safetensors"
RANGES = "ranges."
ALONE = "alone"
MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """Converts a logit to the probability `sigmoid(slope * logit + cosine * c + offset)`.

    `c` is the cosine similarity of the two questions.
    """

    slope: float
    offset: float
    cosine: float = 0.0

    def probabilities(self, logits: np.ndarray, cosines: np.ndarray | None = None) -> np.ndarray:
        """Return the probabilities, float32 `[n]`, of logits and cosines `[n]`."""
        weighted = 0.0 if cosines is None else self.cosine * cosines.astype(np.float64)
        exponent = np.clip(self.slope * logits.astype(np.float64) + weighted + self.offset, -30, 30)
        return (1 / (1 + np.exp(-exponent))).astype(np.float32)


class BuiltInVerifier:
    """Scores a pair of questions with a cross-encoder and Platt scaling.

    The cross-encoder reads them in alphabetical order, so the score is symmetric.

    Args:
        adapter: changes of the packaged MiniLM weights, see `merge`, and ranges of activations named `ranges.*`.
        integers: see `MiniLMEmbedder`.
    """

    def __init__(
        self,
        adapter: Weights,
        scaling: PlattScaling,
        integers: bool | None = None,
        files: GraphFiles | None = None,
    ) -> None:
        files = files or graph_files()
        integers = computes_int8_exactly(files) if integers is None else integers
        folder = packaged_model()
        trained = {name: value for name, value in adapter.items() if not name.startswith(RANGES)}
        ranges = {name.removeprefix(RANGES): value for name, value in adapter.items() if name.startswith(RANGES)}

        def build() -> bytes:
            return verifier_graph(merge(base_weights(folder), trained), ranges if integers else None)

        source_digest = digest_of(adapter, PACKAGED, code_digest(), "8 bits" if integers else "float32")
        self._session = files.open("verifier", source_digest, build)
        tables = lookup_tables(folder)
        self._tables = merge(tables, {name: value for name, value in trained.items() if name in tables})
        self._tokenizer = load_tokenizer(folder, MAX_TOKENS)
        self._vocabulary = frozenset(self._tokenizer.get_vocab())
        self._scaling = scaling
        self.name = f"built-in-{_digest(adapter, scaling)}"
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "kvproxy-verify")

    @classmethod
    def load(cls, embedder: str | None = None, files: GraphFiles | None = None) -> "BuiltInVerifier":
        """Load the packaged adapter; raises a VerifierError if a file is missing or modified."""
        if not ADAPTER.is_file():
            raise VerifierError(f"{ADAPTER} is missing: install kvproxy again, or name a CrossEncoder")
        try:
            check_packaged_weights(ADAPTER)
        except ValueError as error:
            raise VerifierError(str(error)) from None
        adapter, notes = read_tensors(ADAPTER)
        try:
            return cls(adapter, known_scaling(notes, embedder), files=files)
        except EmbedderError as error:
            raise VerifierError(str(error)) from None

    def can_read(self, text: str) -> bool:
        return is_english(text, self._vocabulary)

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray | None = None) -> np.ndarray:
        return self._scaling.probabilities(self.logits(pairs), cosines)

    def logits(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return the logit of each pair, float32 `[len(pairs)]`."""
        if len(pairs) < 2:
            return np.array([self._one(pair) for pair in pairs], dtype=np.float32)
        return np.array(list(self._pool.map(self._one, pairs)), dtype=np.float32)

    def _one(self, pair: tuple[str, str]) -> float:
        encoded = self._tokenizer.encode(*sorted(pair))
        tokens = look_up(self._tables, encoded.ids, encoded.type_ids)
        return float(self._session.run(None, {"tokens": tokens, "sides": averaging_matrix(encoded.type_ids)})[0].item())


def known_scaling(notes: Mapping[str, str], embedder: str | None) -> PlattScaling:
    """Return the scaling fitted to an embedder's cosines, from the adapter's metadata; without cosines by default."""
    noted = json.loads(notes["calibration"])
    family = (embedder or "").partition("-int8")[0]
    return PlattScaling(**noted.get(family, noted[ALONE]))


def _digest(adapter: Weights, scaling: PlattScaling) -> str:
    # This format must not change: stored observations refer to the digest.
    fitted = f"Calibration(slope={scaling.slope!r}, offset={scaling.offset!r}, cosine={scaling.cosine!r})"
    digest = hashlib.sha256(fitted.encode())
    for name in sorted(adapter):
        digest.update(name.encode() + adapter[name].tobytes())
    return digest.hexdigest()[:8]


_LEAST = 0.8


def is_english(text: str, vocabulary: Container[str]) -> bool:
    """Whether the share of words in the vocabulary is at least 80%; function words count twice."""
    tokens = words(text)
    if not tokens:
        return True
    known = sum(all(part in vocabulary for part in word.split("'") if part) for word in tokens)
    function_words = sum(word in FUNCTION_WORDS for word in tokens)
    return (known + function_words) / len(tokens) >= _LEAST
