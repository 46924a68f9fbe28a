"""An embedder of a program: a function that returns vectors."""

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvproxy.index.errors import EmbedderError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_MAX_CHARACTERS = 1_000


class FunctionEmbedder:
    """An `Embedder` that calls a function, for instance one that calls an API.

    Args:
        name: the name of the model. Only vectors with equal names are compared: give another model another name.
        function: returns one vector for each text of a list. It may be called from several threads.
        dim: the length of a vector; None calls the function to measure it.
        max_characters: longer questions have exact hits only, because many models ignore the end of a long text.

    Raises EmbedderError if the length cannot be measured.
    """

    vocabulary: Container[str] | None = None

    def __init__(
        self,
        name: str,
        function: "Callable[[list[str]], ArrayLike]",
        *,
        dim: int | None = None,
        max_characters: int = _MAX_CHARACTERS,
    ) -> None:
        self.name = name
        self._function = function
        self._max_characters = max_characters
        self.dim = dim or self._measured_dim()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self._function(list(texts)), dtype=np.float32)

    def can_read(self, text: str) -> bool:
        return len(text) <= self._max_characters

    def _measured_dim(self) -> int:
        try:
            vectors = self.embed(["How long is a vector?"])
        except Exception as error:
            raise EmbedderError(f"embedder {self.name!r} failed: {error or type(error).__name__}") from error
        if vectors.ndim != 2 or len(vectors) != 1:
            raise EmbedderError(
                f"the function of embedder {self.name!r} must return a list of one vector for one text, not an array of shape"
                f" {vectors.shape}"
            )
        return int(vectors.shape[1])
