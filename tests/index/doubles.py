"""Test doubles of the models: quick, and always the same."""

import hashlib
import re
import threading
import time
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"\w+")


class HashEmbedder:
    """Texts that share words get vectors close together, always the same ones."""

    name = "hash"
    vocabulary = None

    def __init__(self, dim: int = 64) -> None:
        self.dim = dim

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._one(text) for text in texts])

    def can_read(self, text: str) -> bool:
        return True

    def _one(self, text: str) -> np.ndarray:
        total = np.full(self.dim, 1e-3, dtype=np.float32)
        for word in text.lower().split():
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
            total += np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32)
        unit: np.ndarray = total / np.linalg.norm(total)
        return unit


class OverlapVerifier:
    """Scores a pair by the share of its words that both have (Jaccard): always the same, in either order."""

    def can_read(self, text: str) -> bool:
        return True

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray | None = None) -> np.ndarray:
        return np.array([_overlap(one, other) for one, other in pairs], dtype=np.float32)


def _overlap(one: str, other: str) -> float:
    ours, theirs = (set(_WORD.findall(text.lower())) for text in (one, other))
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


class Held(HashEmbedder):
    """Embeds when `go` is set, in `seconds` for each text. Records the texts of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.calls: list[list[str]] = []
        self.broken = False
        self.seconds = 0.0

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(list(texts))
        time.sleep(self.seconds * len(texts))
        assert self.go.wait(300)
        if self.broken:
            raise RuntimeError("broken")
        return super().embed(texts)
