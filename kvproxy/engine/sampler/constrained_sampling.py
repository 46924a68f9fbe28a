"""Sampling under grammars, with few masks over the whole vocabulary."""

from collections.abc import Sequence
from random import Random

import torch

from kvproxy.engine.sampler.sampler import SampledToken, is_filtered, sample
from kvproxy.engine.sampler.structured_output import GrammarMatcher, allowed_tokens
from kvproxy.engine.worker.transfer import upload
from kvproxy.generation import SamplingParams


def sample_constrained(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],
    matchers: Sequence[GrammarMatcher | None],
) -> list[SampledToken]:
    """Sample one token for each row.

    Most tokens of a model fit its grammar, so an unfiltered row is first sampled without a mask. If the grammar refuses the
    token, the row is sampled again with a mask. Each token keeps its conditional probability given the grammar.

    Args:
        logits: `[rows, vocabulary]`.
        params: sampling parameters of each row.
        uniforms: a uniform random number in [0, 1) for each row.
        matchers: the grammar of each row.
    """
    if not any(matchers):
        return sample(logits, params, uniforms)
    vocabulary = logits.shape[-1]
    forced: dict[int, int] = {}
    unmasked: list[tuple[int, GrammarMatcher]] = []
    masked: list[GrammarMatcher | None] = [None] * len(matchers)
    for row, matcher in enumerate(matchers):
        if matcher is None:
            continue
        token = matcher.forced_token()
        if token is not None:
            forced[row] = token
        elif params[row].is_greedy or not is_filtered(params[row], vocabulary):
            unmasked.append((row, matcher))
        else:
            # The top tokens depend on the mask.
            masked[row] = matcher
    sampled = sample(logits, params, uniforms, allowed_tokens(masked, vocabulary) if any(masked) else None, forced)
    refused = [(row, matcher) for row, matcher in unmasked if not matcher.allows(sampled[row].token)]
    if refused:
        rows = [row for row, _ in refused]
        resampled = sample(
            logits[upload(rows, logits.device)],
            [params[row] for row in rows],
            [_second_uniform(uniforms[row]) for row in rows],
            allowed_tokens([matcher for _, matcher in refused], vocabulary),
        )
        for row, replacement in zip(rows, resampled, strict=True):
            sampled[row] = replacement
    return sampled


def _second_uniform(uniform: float) -> float:
    """Derive a second random number, so that each token consumes one number of the sequence's stream."""
    return Random(uniform).random()
