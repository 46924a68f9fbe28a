"""The verifier in the box: the packaged MiniLM with a trained adapter, in ONNX Runtime."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kvproxy.index.errors import EmbedderError, VerifierError
from kvproxy.index.minilm.graph import verifier_graph
from kvproxy.index.minilm.session import keeps_integers, open_session
from kvproxy.index.minilm.tokens import load_tokenizer, look_up, sides
from kvproxy.index.minilm.weights import Weights, base_weights, merge, packaged_model, read_tensors
from kvproxy.index.verifier.scaling import PlattScaling

ADAPTER = Path(__file__).parent / "adapter.safetensors"
RANGES = "ranges."
ALONE = "alone"
MAX_TOKENS = 256


class BuiltInVerifier:
    """Scores a pair by the cross-encoder's logit, made a probability by the calibration that is noted in the adapter.

    The two questions are put in alphabetical order before they are read, so that the score does not depend on the order.

    Args:
        base: the packaged weights.
        adapter: what was trained, and under `ranges.` the ranges for 8 bits.
        scaling: from logits, and cosines if it weighs them, to probabilities.
        threads: that one call computes on, a pair on each.
        integers: compute in 8 bits; by default wherever the processor does so exactly, else in float32.
    """

    def __init__(
        self,
        adapter: Weights,
        scaling: PlattScaling,
        threads: int = 1,
        integers: bool | None = None,
    ) -> None:
        integers = keeps_integers() if integers is None else integers
        ranges = {name.removeprefix(RANGES): value for name, value in adapter.items() if name.startswith(RANGES)}
        folder = packaged_model()
        weights = merge(
            base_weights(folder), {name: value for name, value in adapter.items() if not name.startswith(RANGES)}
        )
        self._session = open_session(verifier_graph(weights, ranges if integers else None))
        self._tables = {name: table for name, table in weights.items() if name.startswith("embeddings.")}
        self._tokenizer = load_tokenizer(folder, MAX_TOKENS)
        self._scaling = scaling
        self.name = f"built-in-{_digest(adapter, scaling)}"
        self._threads = threads

    @classmethod
    def load(cls, embedder: str | None = None, threads: int = 1) -> "BuiltInVerifier":
        """Merge the shipped adapter into the packaged weights.

        Args:
            embedder: whose cosines are given to `score`; they count if the calibration was fitted to them.
            threads: as above.

        Raises:
            VerifierError: either is missing.
        """
        if not ADAPTER.is_file():
            raise VerifierError(f"{ADAPTER} is missing: install kvproxy again, or name a CrossEncoder")
        adapter, notes = read_tensors(ADAPTER)
        try:
            return cls(adapter, known_scaling(notes, embedder), threads)
        except EmbedderError as error:
            raise VerifierError(str(error)) from None

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray | None = None) -> np.ndarray:
        return self._scaling.probabilities(self.logits(pairs), cosines)

    def logits(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Before calibration: float32 `[len(pairs)]`."""
        if self._threads == 1 or len(pairs) < 2:
            return np.array([self._one(pair) for pair in pairs], dtype=np.float32)
        with ThreadPoolExecutor(self._threads) as pool:
            return np.array(list(pool.map(self._one, pairs)), dtype=np.float32)

    def _one(self, pair: tuple[str, str]) -> float:
        encoded = self._tokenizer.encode(*sorted(pair))
        tokens = look_up(self._tables, encoded.ids, encoded.type_ids)
        return float(self._session.run(None, {"tokens": tokens, "sides": sides(encoded.type_ids)})[0].item())


def known_scaling(notes: Mapping[str, str], embedder: str | None) -> PlattScaling:
    """The calibration noted for an embedder's cosines, in whatever precision it computes, else the one without any."""
    noted = json.loads(notes["calibration"])
    family = (embedder or "").removesuffix("-int8")
    return PlattScaling(**noted.get(family, noted[ALONE]))


def _digest(adapter: Weights, scaling: PlattScaling) -> str:
    """Names what gives the scores, so that what was learned from one adapter's scores is never used with another's."""
    # This text must stay as it is: observations in users' stores are kept under the name that comes out of it.
    fitted = f"Calibration(slope={scaling.slope!r}, offset={scaling.offset!r}, cosine={scaling.cosine!r})"
    digest = hashlib.sha256(fitted.encode())
    for name in sorted(adapter):
        digest.update(name.encode() + adapter[name].tobytes())
    return digest.hexdigest()[:8]
