"""Drawing tokens that grammars allow, with as few masks over the whole vocabulary as will do."""

from collections.abc import Sequence
from random import Random

import torch

from kvproxy.engine.sampler.sampler import Sample, is_filtered, sample
from kvproxy.engine.sampler.structured_output import GrammarMatcher, allowed_tokens
from kvproxy.engine.worker.transfer import upload
from kvproxy.generation import SamplingParams


def sample_constrained(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    points: Sequence[float],
    matchers: Sequence[GrammarMatcher | None],
) -> list[Sample]:
    """One token for each row.

    A row is drawn from freely at first, since most of what a model says under a grammar is allowed. Where it is not, the row is
    drawn from again among what is allowed. Both together give a token the chance that it has among those that are allowed.

    Args:
        logits: `[rows, vocabulary]`.
        params: settings of each row.
        points: each row's random number, from 0 to below 1.
        matchers: each row's grammar; None where it has none.
    """
    if not any(matchers):
        return sample(logits, params, points)
    vocabulary = logits.shape[-1]
    fixed: dict[int, int] = {}
    free: list[int] = []
    masked: list[GrammarMatcher | None] = [None] * len(matchers)
    for row, matcher in enumerate(matchers):
        if matcher is None:
            continue
        token = matcher.forced()
        if token is not None:
            fixed[row] = token
        elif params[row].is_greedy or not is_filtered(params[row], vocabulary):
            free.append(row)
        else:
            # Which tokens are the likeliest few depends on which are allowed.
            masked[row] = matcher
    drawn = sample(logits, params, points, allowed_tokens(masked, vocabulary) if any(masked) else None, fixed)
    refused = [row for row in free if not _allows(matchers[row], drawn[row].token)]
    if refused:
        again = sample(
            logits[upload(refused, logits.device)],
            [params[row] for row in refused],
            [_another(points[row]) for row in refused],
            allowed_tokens([matchers[row] for row in refused], vocabulary),
        )
        for row, one in zip(refused, again, strict=True):
            drawn[row] = one
    return drawn


def _another(point: float) -> float:
    """A second random number from a first, so that a draw can be repeated and uses up one number however often it is tried."""
    return Random(point).random()


def _allows(matcher: GrammarMatcher | None, token: int) -> bool:
    return matcher is None or matcher.allows(token)
