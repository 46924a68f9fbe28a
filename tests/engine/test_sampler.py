"""Drawing tokens: the distribution, and that a row's draw is its own affair."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.engine.sampler import make_generator, sample
from kvproxy.generation import SamplingParams

DRAWS = 4000


def plain(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities after temperature, top_k and top_p, the long way."""
    order = sorted(range(len(logits)), key=lambda token: -float(logits[token]))
    kept = order[: params.top_k] if params.top_k else order
    weights = {token: float(torch.exp(logits[token] / params.temperature)) for token in kept}
    total = sum(weights.values())
    chosen: dict[int, float] = {}
    for token in kept:
        if chosen and sum(chosen.values()) >= params.top_p:
            break
        chosen[token] = weights[token] / total
    whole = sum(chosen.values())
    return torch.tensor([chosen.get(token, 0.0) / whole for token in range(len(logits))])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1),
        SamplingParams(seed=2, temperature=0.5),
        SamplingParams(seed=3, top_k=3),
        SamplingParams(seed=4, top_p=0.7),
        SamplingParams(seed=5, top_k=4, top_p=0.8, temperature=2.0),
    ],
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    logits = torch.tensor([0.1, 2.0, -1.0, 1.5, 0.7, -3.0])
    generator = make_generator(params, 0)
    drawn = sample(logits.expand(DRAWS, -1), [params] * DRAWS, [generator] * DRAWS)
    counts = torch.bincount(torch.tensor([each.token for each in drawn]), minlength=len(logits))
    expected = plain(logits, params)
    assert counts[expected == 0].sum() == 0
    assert (counts / DRAWS - expected).abs().max() < 4 * (0.25 / DRAWS) ** 0.5


_PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    top_p=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 100]),
    seed=st.integers(0, 9),
)


@settings(deadline=None)
@given(st.lists(_PARAMS, min_size=1, max_size=5), st.integers(0, 1000))
def test_a_draw_does_not_depend_on_the_others(params: list[SamplingParams], seed: int) -> None:
    logits = torch.randn(len(params), 20, generator=torch.Generator().manual_seed(seed)) * 3
    together = sample(logits, params, [make_generator(each, 0) for each in params])
    alone = [sample(logits[row][None], [each], [make_generator(each, 0)])[0] for row, each in enumerate(params)]
    assert together == alone
    for row, each in enumerate(params):
        if each.temperature == 0 or each.top_k == 1 or each.top_p == 0:
            assert together[row].token == int(logits[row].argmax())


def test_no_token_without_a_probability_is_drawn() -> None:
    logits = torch.full((2, 1000), float("-inf"))
    logits[0, 3] = logits[1, 999] = 0.0
    params = SamplingParams(seed=0)
    for _ in range(50):
        assert [each.token for each in sample(logits, [params] * 2, [make_generator(params, 0)] * 2)] == [3, 999]
