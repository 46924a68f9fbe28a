"""Choosing the next token of each sequence from its logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvproxy.engine.transfer import upload
from kvproxy.generation import SamplingParams

_ROWS = 256


@dataclass(frozen=True, slots=True)
class Sample:
    """A chosen token; log-probabilities where the request asked for them, and its rank (1 is the likeliest) in a prompt."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


def make_generator(params: SamplingParams, index: int) -> torch.Generator:
    """A source of random numbers for one answer: repeatable with a seed, and different for each of `n` answers."""
    generator = torch.Generator(device="cpu")
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed((params.seed + index * 0x9E3779B9) % 2**63)
    return generator


def sample(
    logits: torch.Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator]
) -> list[Sample]:
    """One token for each row.

    Args:
        logits: `[rows, vocabulary]`.
        params: settings of each row.
        generators: each row's own, so that a draw never depends on what else is in the batch.
    """
    tokens = logits.argmax(dim=-1)
    drawing = [row for row, settings in enumerate(params) if settings.temperature > 0]
    vocabulary = logits.shape[-1]
    # In two parts, because a filtered row is drawn from in another order.
    filtered = {row for row in drawing if params[row].top_p < 1.0 or 0 < params[row].top_k < vocabulary}
    for rows in (sorted(filtered), [row for row in drawing if row not in filtered]):
        if rows:
            at = upload(rows, logits.device)
            tokens[at] = _draw(logits[at].float(), [params[row] for row in rows], [generators[row] for row in rows])
    # The only place where the device is waited for.
    return [with_logprobs(logits[row], token, params[row]) for row, token in enumerate(tokens.tolist())]


def _draw(
    logits: torch.Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator]
) -> torch.Tensor:
    """A token for each row, where the device is, from one random number each; all rows are filtered, or none."""
    logits = logits / upload([each.temperature for each in params], logits.device, np.float32)[:, None]
    order = None
    if params[0].top_p < 1.0 or 0 < params[0].top_k < logits.shape[-1]:
        logits, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = _filter(logits, params)
    else:
        probabilities = logits.softmax(dim=-1)
    cumulative = probabilities.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    points = [torch.rand((), generator=each, dtype=torch.float64).item() for each in generators]
    point = total * upload(points, logits.device, np.float64)[:, None]
    # Below the total in spite of rounding: beyond it there are only tokens without a probability.
    point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(cumulative, point, right=True).clamp(max=logits.shape[-1] - 1)
    return (found if order is None else order.gather(1, found))[:, 0]


def _filter(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Probabilities of tokens in falling order, 0 for those that top_k and top_p leave out."""
    device, vocabulary = logits.device, logits.shape[-1]
    counts = upload([each.top_k if each.top_k > 0 else vocabulary for each in params], device)
    places = torch.arange(vocabulary, device=device)
    probabilities = logits.masked_fill(places >= counts[:, None], float("-inf")).softmax(dim=-1)
    top_p = upload([each.top_p if each.top_p < 1.0 else 2.0 for each in params], device, np.float32)[:, None]
    # A token stays while those before it have not reached top_p; the most likely one stays even for a top_p of 0.
    before = probabilities.cumsum(dim=-1) - probabilities
    return probabilities.masked_fill((before >= top_p) & (places > 0), 0.0)


def with_logprobs(logits: torch.Tensor, token: int, params: SamplingParams) -> Sample:
    """A token that was chosen from a row's logits, with what its request wants to know of it."""
    if params.logprobs is None:
        return Sample(token)
    logprobs = logits.float().log_softmax(dim=-1)
    top: tuple[tuple[int, float], ...] = ()
    if params.logprobs:
        values, ids = logprobs.topk(min(params.logprobs, logprobs.shape[-1]))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Sample(token, float(logprobs[token]), top)


def score(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[Sample]:
    """How likely given tokens were.

    Args:
        logits: `[rows, vocabulary]`.
        tokens: one for each row.
        top: most likely alternatives to report.
    """
    samples: list[Sample] = []
    # The probabilities of a long prompt over a large vocabulary would take gigabytes.
    for start in range(0, len(tokens), _ROWS):
        given = tokens[start : start + _ROWS]
        logprobs = logits[start : start + len(given)].float().log_softmax(dim=-1)
        chosen = logprobs.gather(1, torch.tensor(given, device=logits.device)[:, None])
        ranks = ((logprobs > chosen).sum(dim=1) + 1).tolist()
        values, ids = (best.tolist() for best in logprobs.topk(min(top, logprobs.shape[-1])))
        samples += [
            Sample(token, value, tuple(zip(ids[row], values[row], strict=True)), ranks[row])
            for row, (token, value) in enumerate(zip(given, chosen[:, 0].tolist(), strict=True))
        ]
    return samples
