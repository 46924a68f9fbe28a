"""Verifiers estimate the probability that one answer serves two questions; start with built_in.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kvproxy.index.doors import VERIFIERS

if TYPE_CHECKING:
    import numpy as np

BUILT_IN = "built-in"


class Verifier(Protocol):
    def can_read(self, text: str) -> bool: ...

    def score(self, pairs: Sequence[tuple[str, str]], cosines: "np.ndarray") -> "np.ndarray":
        """Return the probability that one answer serves both questions of each pair, `[n]` float32. Thread-safe."""


@runtime_checkable
class CosineBound(Protocol):
    """A verifier that hardly ever accepts pairs with a low cosine."""

    def least_cosine(self, level: float) -> float:
        """Return a cosine below which at most 1% of the pairs with a probability of at least `level` lie."""


def load_verifier(name: str = BUILT_IN, embedder: str | None = None, data_folder: Path | None = None) -> Verifier:
    """Load a verifier of `VERIFIERS`, or a sentence-transformers CrossEncoder with one output by its folder or id.

    Raises a VerifierError or PluginError.

    `embedder` is the name of the embedder that computes the cosines for `score`; for `data_folder`, see `load_embedder`.
    """
    if name in VERIFIERS.names():
        verifier: Verifier = VERIFIERS.create(name, embedder, data_folder)
        return verifier
    from kvproxy.index.models.verifier.cross_encoder import CrossEncoderVerifier

    return CrossEncoderVerifier.load(name)
