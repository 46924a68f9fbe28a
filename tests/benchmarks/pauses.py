"""Input price of agent sessions under ways to treat pauses, with a policy that never saw the tested sessions.

python -m tests.benchmarks.pauses FOLDER [--train FOLDER] [--folds 10] [--seeds 5]

FOLDER has agent traces of WEKA (*.json.gz). Without --train the policy is cross-validated over the files.
"""

import argparse
import random
from pathlib import Path
from statistics import mean

from kvproxy.offline.pause_costs import Comparison, Session, compare_policies, learn, read_sessions
from kvproxy.pause_policy import CachePrices


def folder(path: Path) -> list[list[Session]]:
    files = sorted(path.glob("*.json*"))
    if not files:
        raise SystemExit(f"{path} has no traces")
    return [read_sessions(file) for file in files]


def cross_validated(files: list[list[Session]], folds: int, seed: int) -> Comparison:
    order = list(range(len(files)))
    random.Random(seed).shuffle(order)
    parts = []
    for fold in range(folds):
        tested = set(order[fold::folds])
        training = [session for place, file in enumerate(files) if place not in tested for session in file]
        parts.append((learn(training), [session for place in sorted(tested) for session in files[place]]))
    return compare_policies(parts, CachePrices())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    files = folder(given.folder)
    if given.train is not None:
        survival = learn(session for file in folder(given.train) for session in file)
        runs = [compare_policies([(survival, [session for file in files for session in file])], CachePrices())]
    else:
        runs = [cross_validated(files, given.folds, seed) for seed in range(given.seeds)]
    one = runs[0]
    best = min(one.fixed, key=one.fixed.__getitem__)
    print(f"{len(files)} files, {len(runs)} runs; 1.000 is the five-minute TTL without keep-warm requests")
    print(f"best fixed: up to {best} keep-warm requests          {one.fixed[best]:.3f}")
    print(f"up to 3 keep-warm requests                    {one.fixed[3]:.3f}")
    print(f"one-hour writes always                        {one.hour:.3f}")
    for name, values, bound in (
        ("policy, keep-warm requests only", [run.warm for run in runs], one.warm_bound),
        ("policy, with one-hour writes", [run.policy for run in runs], one.bound),
    ):
        print(
            f"{name:45} {mean(values):.3f} ({min(values):.3f} to {max(values):.3f}),"
            f" pauses known {bound:.3f}, regret {mean(values) - bound:.3f},"
            f" gap to known keep-warm requests closed {one.closed(mean(values)):.0%}"
        )


if __name__ == "__main__":
    main()
