"""Measures how large each channel of the activations gets, which 8-bit graphs are scaled by."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.models.minilm.weights import LAYERS, MATRICES, RANGES, Weights


def measure_ranges(network: Any, inputs: Sequence[Sequence[Any]]) -> Weights:
    """Largest magnitude of each channel before each matrix.

    Args:
        network: a `CrossEncoder`.
        inputs: what it is called with, one or more batches.

    Returns:
        `layer.N.MATRIX` to float32 `[in]`.
    """
    import torch

    ranges: Weights = {}

    def watch(name: str) -> Any:
        def seen(_: Any, given: tuple[Any, ...]) -> None:
            most = given[0].detach().abs().flatten(0, -2).amax(0).numpy()
            ranges[name] = np.maximum(ranges[name], most) if name in ranges else most

        return seen

    watched = [
        network.layer[layer].get_submodule(matrix).register_forward_pre_hook(watch(f"layer.{layer}.{matrix}"))
        for layer in range(LAYERS)
        for matrix in MATRICES
    ]
    with torch.no_grad():
        for batch in inputs:
            network(*batch)
    for hook in watched:
        hook.remove()
    return ranges


def main() -> None:
    """Write `ranges.safetensors`, the packaged embedder's, from the lines of text files."""
    import argparse

    import torch

    from kvproxy.index.models.minilm.tokenizer import load_tokenizer
    from kvproxy.index.models.minilm.weights import base_weights, packaged_model
    from training.verifier.network import CrossEncoder
    from training.verifier.tensors import pad, write_tensors

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("texts", type=Path, nargs="+")
    lines = [line.strip() for path in parser.parse_args().texts for line in path.read_text("utf-8").splitlines()]
    folder = packaged_model()
    tokenizer = load_tokenizer(folder, max_tokens=256)
    encoded = [tokenizer.encode(line) for line in sorted(filter(None, lines), key=len)]
    batches = [map(torch.from_numpy, pad(encoded[at : at + 32])) for at in range(0, len(encoded), 32)]
    ranges = measure_ranges(CrossEncoder(base_weights(folder)).eval(), [tuple(batch) for batch in batches])
    write_tensors(RANGES, ranges, {"lines": str(len(encoded))})


if __name__ == "__main__":
    main()
