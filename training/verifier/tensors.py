"""Padded batches of token ids, and the files that trained weights are written to."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kvproxy.index.models.minilm.tokenizer import Encoding
from kvproxy.index.models.minilm.weights import Weights


def pad(encoded: Sequence[Encoding]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, segments and mask, int64 `[n, longest]`, of encoded texts or pairs."""
    shape = len(encoded), max(len(each.ids) for each in encoded)
    ids, segments, mask = (np.zeros(shape, np.int64) for _ in range(3))
    for row, each in enumerate(encoded):
        length = len(each.ids)
        ids[row, :length], segments[row, :length], mask[row, :length] = each.ids, each.type_ids, 1
    return ids, segments, mask


def write_tensors(path: Path, tensors: Weights, notes: Mapping[str, str]) -> None:
    """Write tensors in half precision; the file is complete or as it was."""
    from safetensors.numpy import save_file

    part = path.with_suffix(".part")
    save_file({name: value.astype(np.float16) for name, value in tensors.items()}, part, dict(notes))
    part.replace(path)
