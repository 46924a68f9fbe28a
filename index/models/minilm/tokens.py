"""Turns texts and pairs of texts into the inputs of the graphs and the network."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.models.minilm.weights import Weights


@cache
def load_tokenizer(folder: Path, max_tokens: int) -> Any:
    """The packaged model's tokenizer. Of a pair that is too long, the longer text is cut first.

    Callers share it, because it takes 9 MB: none may change its settings.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(max_tokens, strategy="longest_first")
    tokenizer.no_padding()
    return tokenizer


def look_up(weights: Weights, ids: Sequence[int], segments: Sequence[int]) -> np.ndarray:
    """Word, position and segment vectors of one text or pair, summed: float32 `[1, length, 384]`."""
    tokens: np.ndarray = weights["embeddings.word"][np.asarray(ids)]
    tokens += weights["embeddings.position"][: len(ids)]
    tokens += weights["embeddings.segment"][np.asarray(segments)]
    return tokens[None]


def sides(segments: Sequence[int]) -> np.ndarray:
    """Rows that average the tokens of either text of a pair: float32 `[1, 2, length]`."""
    second = np.asarray(segments, dtype=np.float32)
    rows: np.ndarray = np.stack([1 - second, second])
    rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1)
    return rows[None]
