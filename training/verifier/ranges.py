"""Measures the ranges of activations, by which int8 graphs scale their inputs.

`python -m training.verifier.ranges FILE...` measures those of the packaged embedder on the lines of text files.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvproxy.index.models.minilm.weights import (
    MATRICES,
    RANGES,
    Weights,
    base_weights,
    load_tokenizer,
    packaged_model,
)
from training.verifier.network import CrossEncoder, pad, write_tensors

_MAX_TOKENS = 256
_BATCH = 32


def measure_ranges(weights: Weights, texts: Sequence[str | tuple[str, str]]) -> Weights:
    """Return the largest magnitude of each input channel of each matrix, `[in]` by `layer.N.MATRIX`."""
    network = CrossEncoder(weights).eval()
    ranges: Weights = {}

    def hook(name: str) -> Callable[[Any, tuple[Any, ...]], None]:
        def record(_: Any, inputs: tuple[Any, ...]) -> None:
            largest = inputs[0].detach().abs().flatten(0, -2).amax(0).numpy()
            ranges[name] = np.maximum(ranges[name], largest) if name in ranges else largest

        return record

    for number, layer in enumerate(network.layer):
        for matrix in MATRICES:
            layer.get_submodule(matrix).register_forward_pre_hook(hook(f"layer.{number}.{matrix}"))
    encoded = load_tokenizer(packaged_model(), _MAX_TOKENS).encode_batch(list(texts))
    with torch.no_grad():
        for start in range(0, len(encoded), _BATCH):
            network(*map(torch.from_numpy, pad(encoded[start : start + _BATCH])))
    return ranges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    lines = [line.strip() for path in parser.parse_args().texts for line in path.read_text("utf-8").splitlines()]
    texts = sorted(filter(None, lines), key=len)
    write_tensors(RANGES, measure_ranges(base_weights(packaged_model()), texts), {"lines": str(len(texts))})


if __name__ == "__main__":
    main()
