"""A verifier from a CrossEncoder of sentence-transformers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvproxy.index.errors import VerifierError, first_line
from kvproxy.index.models.hugging_face_hub import must_load_from_cache
from kvproxy.index.models.minilm.weights import check_model_source


class CrossEncoderVerifier:
    """A sentence-transformers CrossEncoder with one output, whose sigmoid is the probability."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @classmethod
    def load(cls, name: str) -> "CrossEncoderVerifier":
        try:
            check_model_source(name)
            cached = must_load_from_cache(name)
            from sentence_transformers import CrossEncoder
            from transformers.utils import logging

            logging.disable_progress_bar()
            model = CrossEncoder(name, model_kwargs={"use_safetensors": True}, local_files_only=cached)
        except (OSError, ValueError) as error:
            raise VerifierError(
                f"cannot load verifier {name!r} ({first_line(error)}): give a folder, a cached CrossEncoder id, or 'built-in'"
            ) from None
        if model.config.num_labels != 1:
            raise VerifierError(
                f"verifier {name!r} has {model.config.num_labels} outputs: give a CrossEncoder with one"
            )
        return cls(model)

    def can_read(self, text: str) -> bool:
        return True

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray) -> np.ndarray:
        import torch

        if not pairs:
            return np.zeros(0, dtype=np.float32)
        scores = self._model.predict(
            [list(pair) for pair in pairs], activation_fn=torch.nn.Sigmoid(), show_progress_bar=False
        )
        return np.asarray(scores, dtype=np.float32)
