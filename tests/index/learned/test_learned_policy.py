"""What a namespace learns is a fold over its observations: two proxies agree, and so does one that starts again."""

import random
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.learned import state
from kvproxy.index.learned.evidence import evidence
from kvproxy.index.learned.learner import Learner
from kvproxy.index.learned.prior import Prior
from kvproxy.index.observations import Observation, SqliteObservations
from kvproxy.index.policies.learned import LearnedPolicy
from tests.reference.memory_observations import MemoryObservations


def observation(generator: random.Random, namespace: str = "n") -> Observation:
    """One whose answer is right the more often the nearer it is."""
    near = sorted((generator.uniform(0.3, 1.0) for _ in range(8)), reverse=True)
    classes = [generator.choice("aab") for _ in near]
    right = generator.random() < near[0]
    error = generator.uniform(0.0, 0.2)
    vetoes = ("names",) if generator.random() < 0.2 else ()
    return Observation(
        "e",
        right,
        "answer",
        True,
        0.0,
        namespace,
        classes[0],
        tuple(evidence(near, classes).tolist()),
        error,
        generator.uniform(0.1, 1.0),
        vetoes,
        generator.choice("ab"),
        generator.random() < 0.2,
    )


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10**6), st.integers(0, 40), st.integers(0, 40))
def test_a_snapshot_and_what_came_after_it_give_the_same_as_the_whole_log(seed: int, before: int, after: int) -> None:
    generator = random.Random(seed)
    log = [observation(generator) for _ in range(before + after)]
    whole = Learner.new(Prior(), 0.02)
    half = Learner.new(Prior(), 0.02)
    for seen in log:
        whole.learn(seen)
    for seen in log[:before]:
        half.learn(seen)
    again = state.load(state.dump(half), 0.02)
    assert again is not None
    for seen in log[before:]:
        again.learn(seen)
    assert state.dump(again) == state.dump(whole)
    assert again.level.level == whole.level.level
    assert again.level.factor == whole.level.factor


def test_a_state_of_another_version_is_learned_anew() -> None:
    kept = state.dump(Learner.new(Prior(), 0.02))
    assert state.load(kept.replace('"version": 1', '"version": 0'), 0.02) is None


def test_two_proxies_on_one_log_decide_alike_and_so_does_a_third_that_starts_later(tmp_path: Path) -> None:
    generator = random.Random(3)
    path = tmp_path / "o.db"
    first, second = (LearnedPolicy(SqliteObservations(path), None, 0.05, 0.5) for _ in range(2))
    second.learner("n")
    for number in range(450):
        (first if number % 2 else second).learn([observation(generator)])
        if number % 7 == 0:
            first.served("n", 0.01)
    first.flush()
    second.flush()
    third = LearnedPolicy(SqliteObservations(path), None, 0.05, 0.5)
    states = {state.dump(policy.learner("n")) for policy in (first, second, third)}
    assert len(states) == 1
    assert first.status("n") == third.status("n")
    assert first.status("n").observations == 450
    assert first.status("n").served == 65


def test_namespaces_learn_apart_and_share_what_a_new_one_starts_from() -> None:
    policy = LearnedPolicy(MemoryObservations(), None, 0.02, 0.5)
    generator = random.Random(1)
    policy.learn([observation(generator, "n") for _ in range(300)])
    fresh = policy.learner("m")
    assert (fresh.observed, fresh.level.level) == (0, 0.0)
    shipped = Prior().score().weights
    assert not np.allclose(fresh.score.weights, shipped)
    assert not np.allclose(fresh.score.weights, policy.learner("n").score.weights)
    assert set(policy.statuses()) == {"n", "m"}
