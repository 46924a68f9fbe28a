"""Packages a trained adapter: `python -m training.verifier.package_adapter --pairs FILE --trained FILE`.

Averages checkpoints, measures the activation ranges for int8 on training pairs, and fits two Platt scalings on held-out pairs:
of the logit alone, and of the logit with the packaged embedder's cosine.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from kvproxy.index.evaluation.labelled_pairs import read_pairs
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.models.minilm.weights import Weights, base_weights, merge_adapter, packaged_model, read_tensors
from kvproxy.index.models.verifier.built_in import ADAPTER, ALONE, RANGES, BuiltInVerifier, PlattScaling
from training.verifier.evaluate import cosines, fit_scaling
from training.verifier.network import write_tensors
from training.verifier.pair_clusters import hold_out
from training.verifier.ranges import measure_ranges

EMBEDDER = "all-MiniLM-L6-v2"
MEASURED_PAIRS = 512


def average_checkpoints(checkpoints: Sequence[Weights]) -> Weights:
    """Return the mean of a training's checkpoints, which is better than each (arXiv 2203.05482)."""
    names = [name for name in checkpoints[0] if not name.startswith(RANGES)]
    return {name: np.stack([weights[name] for weights in checkpoints]).mean(0, dtype=np.float32) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True, help="the pairs of the training")
    parser.add_argument("--trained", type=Path, nargs="+", required=True, help="checkpoints, which are averaged")
    parser.add_argument("--out", type=Path, default=ADAPTER)
    options = parser.parse_args()
    parts = hold_out(list(read_pairs(options.pairs)))
    adapter = average_checkpoints([read_tensors(file)[0] for file in options.trained])
    measured = [(pair.a, pair.b) for pair in parts.train[:MEASURED_PAIRS]]
    ranges = measure_ranges(merge_adapter(base_weights(packaged_model()), adapter), measured)
    complete = adapter | {f"{RANGES}{name}": value for name, value in ranges.items()}
    logits = BuiltInVerifier(complete, PlattScaling(1, 0)).logits([(pair.a, pair.b) for pair in parts.calibrate])
    same = np.array([pair.same for pair in parts.calibrate])
    scalings = {
        ALONE: fit_scaling(logits, same),
        EMBEDDER: fit_scaling(logits, same, cosines(parts.calibrate, load_embedder())),
    }
    calibration = json.dumps({name: asdict(scaling) for name, scaling in scalings.items()})
    write_tensors(options.out, complete, {"averaged": str(len(options.trained)), "calibration": calibration})
    print(f"{options.out}: {options.out.stat().st_size:,} bytes, {calibration}")


if __name__ == "__main__":
    main()
