"""Tokens drawn under a grammar, against masks over the whole vocabulary."""

import json
import math
import random
from collections.abc import Iterator

import pytest
import torch

from kvproxy.engine.models.loader import load_model
from kvproxy.engine.sampler.constrained_sampling import sample_constrained
from kvproxy.engine.sampler.structured_output import GrammarCompiler, GrammarMatcher, allowed_tokens
from kvproxy.engine.text.tokenizer import ChatTokenizer
from kvproxy.generation import Grammar, SamplingParams
from tests.engine.schemas import random_schema

VOCABULARY = 2048
DRAWS = 4000
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
FREE = SamplingParams(temperature=1.0, logprobs=0)
FEW = SamplingParams(temperature=1.0, top_k=3, logprobs=0)


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return load_model("demo", "cpu").tokenizer


@pytest.fixture(scope="module")
def grammars(tokenizer: ChatTokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, VOCABULARY)


def walks(
    grammars: GrammarCompiler, chance: random.Random, count: int
) -> Iterator[tuple[GrammarMatcher, torch.Tensor]]:
    """Places in random texts that fit random schemas, each with the mask there."""
    for _ in range(count):
        matcher = grammars.matcher(Grammar("json_schema", json.dumps(random_schema(chance, depth=2))))
        for _ in range(40):
            mask = allowed_tokens([matcher], VOCABULARY)[0]
            yield matcher, mask
            matcher.accept_token(chance.choice(mask.nonzero().flatten().tolist()))
            if matcher.is_terminated:
                break


def test_forced_and_single_tokens_are_those_of_the_mask(grammars: GrammarCompiler) -> None:
    forced = free = 0
    for matcher, mask in walks(grammars, random.Random(1), 20):
        only = matcher.forced_token()
        if only is not None:
            forced += 1
            assert mask.nonzero().flatten().tolist() == [only]
            assert matcher.fork().forced_token() == only
        else:
            free += 1
            assert mask.sum() > 1
            assert [matcher.allows(token) for token in range(VOCABULARY)] == mask.tolist()
    assert forced > 50
    assert free > 50


def test_the_likeliest_token_is_that_of_the_mask(grammars: GrammarCompiler) -> None:
    generator = torch.Generator().manual_seed(3)
    refused = 0
    for matcher, mask in walks(grammars, random.Random(2), 20):
        logits = torch.randn(2, VOCABULARY, generator=generator)
        # A row whose likeliest token is allowed, and one whose likeliest token may be any.
        logits[0, int(mask.nonzero()[-1])] = 9.0
        best = logits.masked_fill(~mask, float("-inf"))
        drawn = sample_constrained(logits, [GREEDY] * 2, [0.0] * 2, [matcher] * 2)
        assert [one.token for one in drawn] == best.argmax(dim=-1).tolist()
        refused += int(logits[1].argmax()) != drawn[1].token
        # Log-probabilities are the model's own.
        own = logits.log_softmax(dim=-1)
        for row, one in enumerate(drawn):
            assert one.logprob == pytest.approx(float(own[row, one.token]), abs=1e-5)
    assert refused > 50


def colours(grammars: GrammarCompiler, tokenizer: ChatTokenizer) -> tuple[GrammarMatcher, dict[str, int]]:
    """A grammar at a place where one of several tokens may come, by their text."""
    matcher = grammars.matcher(Grammar("json_schema", '{"enum": ["red", "blue", "green", 3, null]}'))
    ids = allowed_tokens([matcher], VOCABULARY)[0].nonzero().flatten().tolist()
    return matcher, {tokenizer.token_text(token): token for token in ids}


@pytest.mark.parametrize("params", [FREE, FEW])
def test_draws_follow_the_distribution_of_what_is_allowed(
    grammars: GrammarCompiler, tokenizer: ChatTokenizer, params: SamplingParams
) -> None:
    matcher, ids = colours(grammars, tokenizer)
    assert {'"', "n", "3"} <= set(ids)
    logits = torch.full((VOCABULARY,), -30.0)
    for number, token in enumerate(sorted(ids.values())):
        logits[token] = 0.5 * number
    mask = allowed_tokens([matcher], VOCABULARY)[0]
    # Seven tenths of the chance lie with a token that is not allowed.
    logits[int((~mask).nonzero()[700])] = float(logits[mask].logsumexp(0)) + math.log(7 / 3)
    chance = random.Random(4)
    points = [chance.random() for _ in range(DRAWS)]
    drawn = sample_constrained(logits.expand(DRAWS, -1), [params] * DRAWS, points, [matcher] * DRAWS)
    counts = torch.bincount(torch.tensor([one.token for one in drawn]), minlength=VOCABULARY)
    expected = logits.masked_fill(~mask, float("-inf"))
    if params.top_k:
        expected = expected.masked_fill(expected < expected.topk(params.top_k).values[-1], float("-inf"))
    expected = expected.softmax(dim=-1)
    assert counts[expected == 0].sum() == 0
    assert (counts / DRAWS - expected).abs().max() < 4 * (0.25 / DRAWS) ** 0.5


def test_a_draw_depends_on_no_other_row_and_can_be_repeated(
    grammars: GrammarCompiler, tokenizer: ChatTokenizer
) -> None:
    matcher, _ = colours(grammars, tokenizer)
    begun = grammars.matcher(Grammar("json_schema", '{"type": "object", "properties": {"a": {}}, "required": ["a"]}'))
    matchers = [matcher, None, begun, matcher, matcher, None, matcher]
    params = [FREE, FREE, FREE, FEW, GREEDY, FEW, FREE]
    logits = torch.randn(len(params), VOCABULARY, generator=torch.Generator().manual_seed(5))
    points = [random.Random(row).random() for row in range(len(params))]
    together = sample_constrained(logits, params, points, matchers)
    assert together == sample_constrained(logits, params, points, matchers)
    for row in range(len(params)):
        one = slice(row, row + 1)
        (alone,) = sample_constrained(logits[one], params[one], points[one], matchers[one])
        assert alone.token == together[row].token
        assert alone.logprob == pytest.approx(together[row].logprob, abs=1e-5)
        if matchers[row] is None:
            # A row without a grammar is drawn as if there were none beside it.
            assert together[row].token == sample_constrained(logits[one], params[one], points[one], [None])[0].token
    assert together[2].token == begun.forced_token()
