"""Choosing the next token of each sequence from its logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvproxy.engine.request import SamplingParams

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
    greedy = logits.argmax(dim=-1).tolist()
    samples = []
    for row, (settings, generator) in enumerate(zip(params, generators, strict=True)):
        token = greedy[row] if settings.temperature == 0 else _draw(logits[row].float(), settings, generator)
        samples.append(with_logprobs(logits[row], token, settings))
    return samples


def _draw(logits: torch.Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    logits = logits.cpu() / params.temperature
    if 0 < params.top_k < logits.shape[-1]:
        least = logits.topk(params.top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    probabilities = logits.softmax(dim=-1)
    if params.top_p < 1.0:
        ordered, order = probabilities.sort(descending=True)
        # A token stays while those before it have not reached top_p; the most likely one stays even for a top_p of 0.
        beyond = ordered.cumsum(dim=-1) - ordered >= params.top_p
        beyond[0] = False
        ordered[beyond] = 0.0
        return int(order[torch.multinomial(ordered, 1, generator=generator)])
    return int(torch.multinomial(probabilities, 1, generator=generator))


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
