from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.models.minilm.weights import Weights


def pad(encoded: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids, segments, and mask of encoded texts or pairs, each `[n, longest]` int64."""
    shape = len(encoded), max(len(each.ids) for each in encoded)
    ids, segments, mask = (np.zeros(shape, np.int64) for _ in range(3))
    for row, each in enumerate(encoded):
        length = len(each.ids)
        ids[row, :length], segments[row, :length], mask[row, :length] = each.ids, each.type_ids, 1
    return ids, segments, mask


def write_tensors(path: Path, tensors: Weights, metadata: Mapping[str, str]) -> None:
    from safetensors.numpy import save_file

    part = path.with_suffix(".part")
    save_file({name: value.astype(np.float16) for name, value in tensors.items()}, part, dict(metadata))
    part.replace(path)
