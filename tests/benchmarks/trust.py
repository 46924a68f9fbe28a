"""Pairs that the policy `checked` serves, beside fixed cosine thresholds: python -m tests.benchmarks.trust [--pairs FILE ..]

Each set of pairs is in the tests' data or made from templates there. `checked` decides in new namespaces. `--pairs` adds files
with lines `{"a", "b"}` and the label `same` or `same_answer`, such as the pairs of the package fow-cache.
"""

import json
from pathlib import Path

from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.policies.policy import Neighbour
from kvproxy.library.configured_cache import build_policy
from kvproxy.settings import CacheSettings
from tests.benchmarks.options import read_options
from tests.index.policies.directions import (
    free_near_misses,
    free_rewordings,
    make_rewordings,
    make_swaps,
    read_pairs,
)
from tests.index.policies.exchanged_roles import exchanged_roles, kept_roles
from tests.reference.memory_observations import MemoryObservations

THRESHOLDS = (0.85, 0.92, 0.95)


def main() -> None:
    embedder = load_embedder()
    policy = build_policy(CacheSettings(policy="checked"), MemoryObservations(), embedder.name)
    sets = {
        "exchanged directions": make_swaps(),
        "exchanged directions, second set": make_swaps(second=True),
        **{f"exchanged roles, {name} set": exchanged_roles(name)[::4] for name in ("first", "second", "third")},
        "near-misses": read_pairs("near_misses"),
        "opposites, by guard": read_pairs("opposites"),
        "kept directions": make_rewordings(),
        "kept directions, second set": make_rewordings(second=True),
        **{f"kept roles, {name} set": kept_roles(name)[::4] for name in ("first", "second", "third")},
        "rewordings": read_pairs("rewordings"),
        "near-misses of weak kinds": read_pairs("weak_near_misses"),
        "rewordings of weak kinds": read_pairs("weak_rewordings"),
        "near-misses of weak kinds, blind": read_pairs("blind_near_misses"),
        "rewordings in their style": read_pairs("blind_rewordings"),
        "*I* and *you* exchanged": [pair for pair in read_pairs("persons") if not pair["same"]],
        "rewordings with *I* and *you*": [pair for pair in read_pairs("persons") if pair["same"]],
        "*I* and *you* exchanged in a subordinate clause": [
            pair for pair in read_pairs("subordinate_persons") if not pair["same"]
        ],
        "rewordings with such clauses": [pair for pair in read_pairs("subordinate_persons") if pair["same"]],
        "modifiers exchanged": [pair for pair in read_pairs("common_heads") if not pair["same"]],
        "rewordings with a common noun": [pair for pair in read_pairs("common_heads") if pair["same"]],
        "done by and to the user": [pair for pair in read_pairs("voices") if not pair["same"]],
        "rewordings with either voice": [pair for pair in read_pairs("voices") if pair["same"]],
        "user and third person exchanged": [pair for pair in read_pairs("receivers") if not pair["same"]],
        "rewordings with a third person": [pair for pair in read_pairs("receivers") if pair["same"]],
        "near-misses in free wordings": free_near_misses(),
        "free rewordings": free_rewordings(),
    }
    for path in read_options(__doc__, pairs=[""]).pairs:
        for pair in map(json.loads, Path(path).read_text().splitlines() if path else ()):
            is_same = pair["same"] if "same" in pair else pair["same_answer"]
            sets.setdefault(f"{Path(path).stem}, {'equal' if is_same else 'different'}", []).append(pair)
    print("| pairs | number | `checked` |", *(f"cosine {each} |" for each in THRESHOLDS))
    print("|---" * (3 + len(THRESHOLDS)) + "|")
    for name, pairs in sets.items():
        one, other = (embedder.embed([pair[side] for pair in pairs]) for side in "ab")
        cosines = [float(cosine) for cosine in (one * other).sum(axis=1)]
        served = [
            policy.decide(pair["a"], [Neighbour(pair["b"], cosine, "a")]).chosen is not None
            for pair, cosine in zip(pairs, cosines, strict=True)
        ]
        shares = [sum(served), *(sum(cosine >= level for cosine in cosines) for level in THRESHOLDS)]
        print(f"| {name} | {len(pairs)} |", *(f"{count} ({count / len(pairs):.1%}) |" for count in shares), flush=True)


if __name__ == "__main__":
    main()
