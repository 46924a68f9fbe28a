"""Drawing tokens: the distribution, and that a row's draw is its own affair."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from kvproxy.apis.codecs.generation import SamplingParams
from kvproxy.engine import sampler
from kvproxy.engine.sampler import UniformStream, most_likely_tokens, sample, score_tokens


def plain(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
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


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_k=2)])
def test_only_allowed_tokens_are_drawn_and_log_probabilities_ignore_the_mask(params: SamplingParams) -> None:
    logits = torch.tensor([0.1, 2.0, -1.0, 1.5, 0.7, -3.0])
    allowed = torch.tensor([True, False, True, False, True, True])
    points = UniformStream(SamplingParams(seed=1), 0).peek(200)
    rows = [replace(params, logprobs=0)] * len(points)
    drawn = sample(logits.expand(len(points), -1), rows, points, allowed.expand(len(points), -1))
    tokens = {4} if params.is_greedy else {0, 4} if params.top_k == 2 else {0, 2, 4, 5}
    assert {each.token for each in drawn} == tokens
    own = logits.log_softmax(-1)
    assert all(each.logprob == pytest.approx(float(own[each.token])) for each in drawn)


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
    together = sample(logits, params, [UniformStream(each, 0).peek(1)[0] for each in params])
    alone = [sample(logits[row][None], [each], UniformStream(each, 0).peek(1))[0] for row, each in enumerate(params)]
    assert together == alone
    for row, each in enumerate(params):
        if each.temperature == 0 or each.top_k == 1 or each.top_p == 0:
            assert together[row].token == int(logits[row].argmax())


def test_no_token_without_a_probability_is_drawn() -> None:
    logits = torch.full((2, 1000), float("-inf"))
    logits[0, 3] = logits[1, 999] = 0.0
    params = SamplingParams(seed=0)
    for point in (0.0, 0.3, 1 - 2**-53):
        assert [each.token for each in sample(logits, [params] * 2, [point] * 2)] == [3, 999]


def walk(logits: torch.Tensor, params: SamplingParams, point: float) -> tuple[int, float]:
    probabilities = plain(logits, params).double()
    vocabulary = range(len(logits))
    filters = params.top_p < 1 or 0 < params.top_k < len(logits)
    order = sorted(vocabulary, key=lambda token: -float(logits[token])) if filters else list(vocabulary)
    passed, distance, chosen = 0.0, 1.0, -1
    for token in order:
        passed += float(probabilities[token])
        distance = min(distance, abs(passed - point))
        if chosen < 0 and passed > point:
            chosen = token
    return chosen, distance


def test_every_row_is_drawn_as_a_walk_over_the_tokens_would() -> None:
    kinds = [
        SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
        for temperature in (0.7, 1.5)
        for top_p in (0.6, 1.0)
        for top_k in (0, -1, 3, 8, 100)
    ]
    logits = torch.randn(len(kinds), 8, generator=torch.Generator().manual_seed(5)) * 2
    checked = 0
    for point in (0.02, 0.23, 0.41, 0.66, 0.87, 0.98):
        drawn = sample(logits, kinds, [point] * len(kinds))
        for row, params in enumerate(kinds):
            token, distance = walk(logits[row], replace(params, top_k=max(0, params.top_k)), point)
            if distance > 1e-5:
                assert drawn[row].token == token, (params, point)
                checked += 1
    assert checked > 100


class Waits(TorchFunctionMode):
    READS = ("tolist", "item", "__float__", "__int__", "__bool__", "__index__", "numpy", "cpu", "nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += getattr(func, "__name__", "") in self.READS
        return func(*args, **(kwargs or {}))


def test_a_batch_waits_for_the_device_once_whatever_its_rows_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a GPU; on a CPU there is nothing to wait for.
    monkeypatch.setattr(sampler, "most_likely_tokens", lambda logits: logits.argmax(dim=-1))
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, logprobs=0),
        SamplingParams(logprobs=5),
        SamplingParams(top_k=3, logprobs=2),
    ] * 3
    with Waits() as waits:
        drawn = sample(torch.randn(len(kinds), 50), kinds, [0.5] * len(kinds))
    assert waits.count == 1
    assert [len(each.top) for each in drawn[:4]] == [0, 0, 5, 2]
    with Waits() as waits:
        score_tokens(torch.randn(300, 50), [7] * 300, 3)
    assert waits.count == 2, "one wait for 256 tokens of a prompt"


def test_logprobs_of_each_row_are_those_that_it_asked_for() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(2))
    asked = [2, None, 0, 30]
    params = [SamplingParams(temperature=0.0, logprobs=count) for count in asked]
    for row, each in enumerate(sample(logits, params, [0.0] * 4)):
        expected = logits[row].log_softmax(-1)
        best = expected.argsort(descending=True)[: asked[row] or 0].tolist()
        assert each.token == int(logits[row].argmax())
        assert each.logprob == (None if asked[row] is None else float(expected[each.token]))
        assert each.top == tuple((token, float(expected[token])) for token in best)


def test_a_random_number_that_was_only_looked_at_comes_again() -> None:
    params = SamplingParams(seed=3)
    draws = UniformStream(params, 1)
    five = draws.peek(5)
    assert draws.peek(2) == five[:2]
    draws.pop()
    assert draws.peek(3) == five[1:4]
    assert UniformStream(params, 0).peek(1) != UniformStream(params, 1).peek(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_likeliest_token_is_the_first_of_the_highest(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    # Few values, so that many are equal.
    logits = torch.randint(-3, 4, (9, 500), generator=generator).to(dtype)
    logits[1] = float("-inf")
    logits[2, 7] = float("nan")
    logits[3:5] = float("-inf")
    logits[3, 499] = logits[4, 0] = -2.0
    expected = [row.index(max(row)) if number != 2 else 7 for number, row in enumerate(logits.tolist())]
    assert most_likely_tokens(logits).tolist() == expected == logits.argmax(dim=-1).tolist()


def test_who_draws_with_a_seed_draws_the_same_in_every_version() -> None:
    for seed, index, used in ((5, 0, 5), (5, 2, 5 + 2 * 0x9E3779B9), (2**63 + 7, 0, 7), (-1, 0, 2**63 - 1)):
        generator = torch.Generator().manual_seed(used)
        expected = [torch.rand((), generator=generator, dtype=torch.float64).item() for _ in range(3)]
        assert UniformStream(SamplingParams(seed=seed), index).peek(3) == expected
    assert UniformStream(SamplingParams(), 0).peek(1) != UniformStream(SamplingParams(), 0).peek(1)
