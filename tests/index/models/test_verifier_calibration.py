"""Platt scaling and quality measures agree with a direct count."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.models.verifier.built_in import PlattScaling
from training.verifier.quality import fit_scaling, most_served, reliability

SCORED = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.7, 0.9, 1.0]), st.booleans()), min_size=1, max_size=40)


def test_a_fit_recovers_the_scaling_and_the_weight_of_the_cosine() -> None:
    rng = np.random.default_rng(1)
    logits, cosines = rng.normal(0, 3, 20_000), rng.uniform(0.5, 1, 20_000)
    same = rng.random(20_000) < PlattScaling(0.6, -3.0, 4.0).probabilities(logits, cosines)
    found = fit_scaling(logits, same, cosines)
    assert abs(found.slope - 0.6) < 0.03
    assert abs(found.cosine - 4.0) < 0.4
    for part in reliability(found.probabilities(logits, cosines), same):
        assert abs(part.said - part.was) < 0.05
    assert fit_scaling(logits, same).cosine == 0


def test_probabilities_rise_with_the_logits_and_stay_between_0_and_1() -> None:
    chance = PlattScaling(2, 1).probabilities(np.linspace(-100, 100, 50, dtype=np.float32))
    assert chance.dtype == np.float32
    assert (np.diff(chance) >= 0).all()
    assert ((chance >= 0) & (chance <= 1)).all()


@given(SCORED, st.sampled_from([0.0, 0.05, 0.3, 0.5]))
def test_the_chosen_level_serves_the_most_within_the_wrong_share(
    scored: list[tuple[float, bool]], allowed: float
) -> None:
    scores, same = (np.array(column) for column in zip(*scored, strict=True))
    if not same.any():
        return
    found = most_served(scores, same, allowed)
    naive = []
    for level in set(scores.tolist()):
        served = [right for score, right in scored if score >= level]
        if served.count(False) <= allowed * len(served):
            naive.append((len(served), level))
    assert found.served == max(naive, default=(0, 0))[0]
    if found.served:
        assert found.level == max(naive)[1]
        served = [right for score, right in scored if score >= found.level]
        assert found.hit_rate == served.count(True) / same.sum()
        assert found.wrong_share == served.count(False) / len(served)
