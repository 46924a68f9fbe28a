"""Makes a trained adapter ready to ship: `python -m training.verifier.finish --pairs FILE --trained FILE`.

Adds the ranges for 8 bits, measured on training pairs, and the calibrations, fitted on pairs held out for them: one of
the logit alone, and one with the cosine of the packaged embedder.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from kvproxy.index.evaluation.labelled_pairs import Pair, read_pairs
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.models.minilm.tokenizer import load_tokenizer
from kvproxy.index.models.minilm.weights import (
    Weights,
    base_weights,
    merge,
    packaged_model,
    read_tensors,
)
from kvproxy.index.models.verifier.built_in import ADAPTER, ALONE, MAX_TOKENS, RANGES, BuiltInVerifier, PlattScaling
from training.verifier.evaluate import cosines
from training.verifier.network import CrossEncoder
from training.verifier.quality import fit_scaling
from training.verifier.ranges import measure_ranges
from training.verifier.splits import hold_out
from training.verifier.tensors import pad, write_tensors

EMBEDDER = "all-MiniLM-L6-v2"
MEASURED = 512
BATCH = 32


def average(adapters: Sequence[Weights]) -> Weights:
    """The mean of adapters along one training: it does better than each of them (arXiv 2203.05482)."""
    names = [name for name in adapters[0] if not name.startswith(RANGES)]
    return {name: np.stack([adapter[name] for adapter in adapters]).mean(0, dtype=np.float32) for name in names}


def ranges_of(adapter: Weights, pairs: list[Pair]) -> Weights:
    """Ranges of the activations over pairs, as `measure_ranges` gives them."""
    folder = packaged_model()
    network = CrossEncoder(merge(base_weights(folder), adapter)).eval()
    tokenizer = load_tokenizer(folder, MAX_TOKENS)
    encoded = [tokenizer.encode(pair.a, pair.b) for pair in pairs]
    batches = [pad(encoded[at : at + BATCH]) for at in range(0, len(encoded), BATCH)]
    return measure_ranges(network, [tuple(map(torch.from_numpy, batch)) for batch in batches])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=Path, required=True, help="the pairs that it was trained on")
    parser.add_argument(
        "--trained",
        type=Path,
        nargs="+",
        required=True,
        help="what training.verifier.train wrote; several are averaged",
    )
    parser.add_argument("--out", type=Path, default=ADAPTER)
    options = parser.parse_args()
    parts = hold_out(list(read_pairs(options.pairs)))
    adapter = average([read_tensors(file)[0] for file in options.trained])
    ranges = ranges_of(adapter, parts.train[:MEASURED])
    whole = adapter | {f"{RANGES}{name}": value for name, value in ranges.items()}
    logits = BuiltInVerifier(whole, PlattScaling(1, 0)).logits([(pair.a, pair.b) for pair in parts.calibrate])
    same = np.array([pair.same for pair in parts.calibrate])
    calibrations = {
        ALONE: fit_scaling(logits, same),
        EMBEDDER: fit_scaling(logits, same, cosines(parts.calibrate, load_embedder())),
    }
    noted = json.dumps({name: asdict(calibration) for name, calibration in calibrations.items()})
    write_tensors(options.out, whole, {"averaged": str(len(options.trained)), "calibration": noted})
    print(f"{options.out}: {options.out.stat().st_size:,} bytes, {noted}")


if __name__ == "__main__":
    main()
