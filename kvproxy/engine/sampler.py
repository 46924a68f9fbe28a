"""Samples tokens from logits, with log-probabilities."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch

from kvproxy.apis.codecs.generation import SamplingParams
from kvproxy.engine.worker.host_device_copies import upload

_SCORED_ROWS = 256


@dataclass(frozen=True, slots=True)
class SampledToken:
    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


class UniformStream:
    """Random numbers for one sequence: output token `i` is sampled with number `i`, uniform from 0 to 1."""

    def __init__(self, params: SamplingParams, index: int) -> None:
        self._generator = torch.Generator(device="cpu")
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed((params.seed + index * 0x9E3779B9) % 2**63)
        self._peeked: deque[float] = deque()

    def peek(self, count: int) -> list[float]:
        while len(self._peeked) < count:
            self._peeked.append(torch.rand((), generator=self._generator, dtype=torch.float64).item())
        return list(islice(self._peeked, count))

    def pop(self) -> None:
        self.peek(1)
        self._peeked.popleft()


def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    uniforms: Sequence[float],  # a random number from 0 to 1 for each row
    allowed: torch.Tensor | None = None,  # from `allowed_tokens`; None allows all tokens
) -> list[SampledToken]:
    """Sample one token for each row of `logits`, `[rows, vocabulary]`. Log-probabilities ignore the mask `allowed`."""
    plain = logits
    if allowed is not None:
        logits = logits.masked_fill(~allowed.to(logits.device), float("-inf"))
    tokens = most_likely_tokens(logits)
    random_rows = [row for row, settings in enumerate(params) if not settings.is_greedy]
    for is_filtered in (True, False):
        rows = [row for row in random_rows if uses_top_k_or_p(params[row], logits.shape[-1]) == is_filtered]
        if rows:
            at = upload(rows, logits.device)
            tokens[at] = _sample_rows(
                logits[at].float(), [params[row] for row in rows], [uniforms[row] for row in rows]
            )
    return _add_logprobs(plain, tokens, [settings.logprobs for settings in params])


def uses_top_k_or_p(params: SamplingParams, vocabulary: int) -> bool:
    return params.top_p < 1.0 or 0 < params.top_k < vocabulary


def most_likely_tokens(logits: torch.Tensor) -> torch.Tensor:
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    # numpy is several times faster than torch on a CPU.
    return torch.from_numpy(logits.float().numpy().argmax(axis=-1))


def _add_logprobs(logits: torch.Tensor, tokens: torch.Tensor, num_logprobs: Sequence[int | None]) -> list[SampledToken]:
    rows = [row for row, count in enumerate(num_logprobs) if count is not None]
    if not rows:
        return [SampledToken(token) for token in tokens.tolist()]
    at, num_top = upload(rows, logits.device), max(count or 0 for count in num_logprobs)
    scores = _logprob_and_rank_rows(logits[at], tokens[at], num_top)
    # Wait for the device only once.
    values, width, num_tokens = torch.cat([tokens.double(), scores.flatten()]).tolist(), scores.shape[1], len(tokens)
    sampled = [SampledToken(int(token)) for token in values[:num_tokens]]
    for row, start in zip(rows, range(num_tokens, len(values), width), strict=True):
        scored = _parse_logprob_row(values[start : start + width])
        sampled[row] = replace(scored, top=scored.top[: num_logprobs[row]], rank=None)
    return sampled


def _sample_rows(logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> torch.Tensor:
    logits = logits / upload([settings.temperature for settings in params], logits.device, np.float32)[:, None]
    order = None
    if uses_top_k_or_p(params[0], logits.shape[-1]):
        logits, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = _apply_top_k_and_p(logits, params)
    else:
        probabilities = logits.softmax(dim=-1)
    cumulative = probabilities.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    threshold = total * upload(uniforms, logits.device, np.float64)[:, None]
    # Stay below the total despite rounding: tokens beyond it have no probability.
    threshold = torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))
    sampled = torch.searchsorted(cumulative, threshold, right=True).clamp(max=logits.shape[-1] - 1)
    return (sampled if order is None else order.gather(1, sampled))[:, 0]


def _apply_top_k_and_p(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    device, vocabulary = logits.device, logits.shape[-1]
    counts = upload([settings.top_k if settings.top_k > 0 else vocabulary for settings in params], device)
    places = torch.arange(vocabulary, device=device)
    probabilities = logits.masked_fill(places >= counts[:, None], float("-inf")).softmax(dim=-1)
    top_p = upload([settings.top_p if settings.top_p < 1.0 else 2.0 for settings in params], device, np.float32)[
        :, None
    ]
    # Always keep the first token.
    before = probabilities.cumsum(dim=-1) - probabilities
    return probabilities.masked_fill((before >= top_p) & (places > 0), 0.0)


def score_tokens(logits: torch.Tensor, tokens: Sequence[int], num_top: int) -> list[SampledToken]:
    samples: list[SampledToken] = []
    # All log-probabilities of a long prompt would take gigabytes.
    for start in range(0, len(tokens), _SCORED_ROWS):
        given = upload(tokens[start : start + _SCORED_ROWS], logits.device)
        samples += map(
            _parse_logprob_row, _logprob_and_rank_rows(logits[start : start + len(given)], given, num_top).tolist()
        )
    return samples


def _logprob_and_rank_rows(logits: torch.Tensor, tokens: torch.Tensor, num_top: int) -> torch.Tensor:
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs > chosen).sum(dim=1, keepdim=True) + 1
    values, ids = logprobs.topk(min(num_top, logits.shape[-1]))
    # float64 holds token ids and float32 exactly.
    return torch.cat([part.double() for part in (tokens[:, None], chosen, ranks, values, ids)], dim=1)


def _parse_logprob_row(scores: Sequence[float]) -> SampledToken:
    token, logprob, rank, *top = scores
    values, ids = top[: len(top) // 2], top[len(top) // 2 :]
    return SampledToken(int(token), logprob, tuple(zip(map(int, ids), values, strict=True)), int(rank))
