"""Verifiers: models that read two questions together and tell whether one answer serves both. Read `built_in.py` first."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

BUILT_IN = "built-in"


class Verifier(Protocol):
    """What the policies need of a pairwise model."""

    name: str

    def reads(self, text: str) -> bool:
        """Whether it knows the language of a text; of others it can tell nothing."""

    def score(self, pairs: Sequence[tuple[str, str]], cosines: "np.ndarray") -> "np.ndarray":
        """The probability that one answer serves both questions of a pair, for each pair: float32 `[len(pairs)]`.

        Any thread may call it.

        Args:
            pairs: two questions each.
            cosines: of the embeddings of each pair, `[len(pairs)]`. A verifier may use them or not.
        """


def load_verifier(name: str = BUILT_IN, embedder: str | None = None, data: Path | None = None) -> Verifier:
    """A verifier by name.

    Args:
        name: `built-in`, else a folder or id of a sentence-transformers CrossEncoder with one output.
        embedder: the name of the embedder that the cosines come from. The built-in verifier uses the packaged embedder's
            cosines and no others.
        data: the folder of all state. The built-in verifier's finished graph is kept there if the user's cache folder
            cannot be written to.

    Raises:
        VerifierError: it cannot be loaded; the message names the fix.
    """
    if name == BUILT_IN:
        from kvproxy.index.models.minilm.files import graph_files
        from kvproxy.index.models.verifier.built_in import BuiltInVerifier

        return BuiltInVerifier.load(embedder, files=graph_files(data))
    from kvproxy.index.models.verifier.cross_encoder import CrossEncoderVerifier

    return CrossEncoderVerifier.load(name)
