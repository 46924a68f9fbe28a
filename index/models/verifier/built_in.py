"""The verifier in the box: the packaged MiniLM with a trained adapter, in ONNX Runtime."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kvproxy.index.errors import EmbedderError, VerifierError
from kvproxy.index.models.minilm.files import GraphFiles, digest_of, graph_files
from kvproxy.index.models.minilm.graph import builder, verifier_graph
from kvproxy.index.models.minilm.integers import keeps_integers
from kvproxy.index.models.minilm.shipped import check_shipped
from kvproxy.index.models.minilm.tokens import load_tokenizer, look_up, sides
from kvproxy.index.models.minilm.weights import (
    PACKAGED,
    Weights,
    base_weights,
    lookup_tables,
    merge,
    packaged_model,
    read_tensors,
)
from kvproxy.index.models.verifier.english import is_english
from kvproxy.index.models.verifier.scaling import PlattScaling

ADAPTER = Path(__file__).parent / "adapter.safetensors"
RANGES = "ranges."
ALONE = "alone"
MAX_TOKENS = 256


class BuiltInVerifier:
    """Scores a pair by the cross-encoder's logit, which the scaling noted in the adapter turns into a probability.

    The two questions are put in alphabetical order before they are read, so the score does not depend on their order.

    Args:
        adapter: what was trained, and under `ranges.` the ranges for 8 bits.
        scaling: from logits, and cosines if it weighs them, to probabilities.
        cores: that one call may use, a pair on each; by default all there are.
        integers: compute in 8 bits; by default wherever the processor does so exactly, else in float32.
        files: where the finished graph is kept; by default in the user's cache folder.
    """

    def __init__(
        self,
        adapter: Weights,
        scaling: PlattScaling,
        cores: int | None = None,
        integers: bool | None = None,
        files: GraphFiles | None = None,
    ) -> None:
        files = files or graph_files()
        integers = keeps_integers(files) if integers is None else integers
        folder = packaged_model()
        trained = {name: value for name, value in adapter.items() if not name.startswith(RANGES)}
        ranges = {name.removeprefix(RANGES): value for name, value in adapter.items() if name.startswith(RANGES)}

        def build() -> bytes:
            return verifier_graph(merge(base_weights(folder), trained), ranges if integers else None)

        made_from = digest_of(adapter, PACKAGED, builder(), "8 bits" if integers else "float32")
        self._session = files.open("verifier", made_from, build)
        tables = lookup_tables(folder)
        self._tables = merge(tables, {name: value for name, value in trained.items() if name in tables})
        self._tokenizer = load_tokenizer(folder, MAX_TOKENS)
        self._vocabulary = frozenset(self._tokenizer.get_vocab())
        self._scaling = scaling
        self.name = f"built-in-{_digest(adapter, scaling)}"
        self._cores = cores or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._cores, "kvproxy-verify")

    @classmethod
    def load(
        cls, embedder: str | None = None, cores: int | None = None, files: GraphFiles | None = None
    ) -> "BuiltInVerifier":
        """The packaged weights with the shipped adapter.

        Args:
            embedder: whose cosines are given to `score`; they count if the scaling was fitted to them.
            cores, files: as above.

        Raises:
            VerifierError: either is missing, or is not the one that was released.
        """
        if not ADAPTER.is_file():
            raise VerifierError(f"{ADAPTER} is missing: install kvproxy again, or name a CrossEncoder")
        try:
            check_shipped(ADAPTER)
        except ValueError as error:
            raise VerifierError(str(error)) from None
        adapter, notes = read_tensors(ADAPTER)
        try:
            return cls(adapter, known_scaling(notes, embedder), cores, files=files)
        except EmbedderError as error:
            raise VerifierError(str(error)) from None

    def reads(self, text: str) -> bool:
        """Whether a text is English, which it was trained on."""
        return is_english(text, self._vocabulary)

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray | None = None) -> np.ndarray:
        return self._scaling.probabilities(self.logits(pairs), cosines)

    def logits(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Before calibration: float32 `[len(pairs)]`."""
        if self._cores == 1 or len(pairs) < 2:
            return np.array([self._one(pair) for pair in pairs], dtype=np.float32)
        return np.array(list(self._pool.map(self._one, pairs)), dtype=np.float32)

    def _one(self, pair: tuple[str, str]) -> float:
        encoded = self._tokenizer.encode(*sorted(pair))
        tokens = look_up(self._tables, encoded.ids, encoded.type_ids)
        return float(self._session.run(None, {"tokens": tokens, "sides": sides(encoded.type_ids)})[0].item())


def known_scaling(notes: Mapping[str, str], embedder: str | None) -> PlattScaling:
    """The calibration noted for an embedder's cosines, in whatever precision it computes, else the one without any."""
    noted = json.loads(notes["calibration"])
    family = (embedder or "").partition("-int8")[0]
    return PlattScaling(**noted.get(family, noted[ALONE]))


def _digest(adapter: Weights, scaling: PlattScaling) -> str:
    """Names what gives the scores, so that what was learned from one adapter's scores is never used with another's."""
    # This text must stay as it is: observations in users' stores are kept under the name that comes out of it.
    fitted = f"Calibration(slope={scaling.slope!r}, offset={scaling.offset!r}, cosine={scaling.cosine!r})"
    digest = hashlib.sha256(fitted.encode())
    for name in sorted(adapter):
        digest.update(name.encode() + adapter[name].tobytes())
    return digest.hexdigest()[:8]
