"""Inputs of the graphs from texts and pairs of texts."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.models.minilm.weights import Weights


@cache
def load_tokenizer(folder: Path, max_tokens: int) -> Any:
    """Return the tokenizer of the packaged model. It truncates the longer text of a pair first.

    Callers share it, since it takes 9 MB, and must not change its settings.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(max_tokens, strategy="longest_first")
    tokenizer.no_padding()
    return tokenizer


def look_up(weights: Weights, ids: Sequence[int], segments: Sequence[int]) -> np.ndarray:
    """Return the sums of word, position, and segment vectors, float32 `[1, length, 384]`."""
    tokens: np.ndarray = weights["embeddings.word"][np.asarray(ids)]
    tokens += weights["embeddings.position"][: len(ids)]
    tokens += weights["embeddings.segment"][np.asarray(segments)]
    return tokens[None]


def sides(segments: Sequence[int]) -> np.ndarray:
    """Return rows that average the tokens of each text of a pair, float32 `[1, 2, length]`."""
    second = np.asarray(segments, dtype=np.float32)
    rows: np.ndarray = np.stack([1 - second, second])
    rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1)
    return rows[None]
