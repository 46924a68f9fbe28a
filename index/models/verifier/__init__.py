"""Verifiers estimate the probability that one answer serves two questions; start with built_in.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

BUILT_IN = "built-in"


class Verifier(Protocol):
    def can_read(self, text: str) -> bool: ...

    def score(self, pairs: Sequence[tuple[str, str]], cosines: "np.ndarray") -> "np.ndarray":
        """Return the probability that one answer serves both questions of each pair, `[n]` float32. Thread-safe."""


def load_verifier(name: str = BUILT_IN, embedder: str | None = None, data_folder: Path | None = None) -> Verifier:
    """Load `built-in`, or the folder or id of a sentence-transformers CrossEncoder with one output. Raises a VerifierError.

    `embedder` is the name of the embedder that computes the cosines for `score`; for `data_folder`, see `load_embedder`.
    """
    if name == BUILT_IN:
        from kvproxy.index.models.e5 import NAME
        from kvproxy.index.models.minilm.onnx_files import default_onnx_files
        from kvproxy.index.models.verifier.built_in import BuiltInVerifier
        from kvproxy.index.models.verifier.multilingual import MultilingualVerifier

        english = BuiltInVerifier.load(embedder, files=default_onnx_files(data_folder))
        return MultilingualVerifier(english) if (embedder or "").startswith(NAME) else english
    from kvproxy.index.models.verifier.cross_encoder import CrossEncoderVerifier

    return CrossEncoderVerifier.load(name)
