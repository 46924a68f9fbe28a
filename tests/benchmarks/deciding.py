"""What the policy `learned` costs on the request path beyond the search: features, score, level, and guards where it would serve.

python -m tests.benchmarks.deciding
"""

import statistics
import time

import numpy as np

from kvproxy.index.policies.learned.policy import LearnedPolicy
from kvproxy.index.policies.policy import Limits, Neighbour
from kvproxy.index.store.observations import ReplayObservations

_ROUNDS = 2000


def main() -> None:
    generator = np.random.default_rng(0)
    subjects = "the card account payment transfer rate fee pin refund top-up".split()
    for served in (False, True):
        policy = LearnedPolicy(ReplayObservations(), None, 0.02, 0.5)
        policy.learner("").level.limit = float(served)
        taken = []
        for number in range(_ROUNDS):
            cosines = np.sort(generator.uniform(0.5, 0.95, policy.reach))[::-1].tolist()
            near = [
                Neighbour(f"how do I change {subjects[place % 10]} number {number}", cosine, "a" if place < 18 else "b")
                for place, cosine in enumerate(cosines)
            ]
            question = f"how can I change {subjects[0]} with number {number}"
            began = time.perf_counter()
            policy.decide(question, near, Limits())
            taken.append(time.perf_counter() - began)
        what = "would serve" if served else "would not"
        print(f"{what}: {1e3 * statistics.median(taken):.3f} ms (median of {_ROUNDS}, {policy.reach} neighbours)")


if __name__ == "__main__":
    main()
