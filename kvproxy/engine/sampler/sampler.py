"""Choosing the next token of each sequence from its logits."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from kvproxy.engine.worker.transfer import upload
from kvproxy.generation import SamplingParams

_ROWS = 256


@dataclass(frozen=True, slots=True)
class Sample:
    """A chosen token; log-probabilities where the request asked for them, and its rank (1 is the likeliest) in a prompt."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


class UniformStream:
    """The random numbers of one answer, in order. Looking at some does not use them up, so that a draw can be repeated.

    Args:
        params: with a seed the numbers are repeatable.
        index: which of the request's `n` answers; each has numbers of its own.
    """

    def __init__(self, params: SamplingParams, index: int) -> None:
        self._generator = torch.Generator(device="cpu")
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed((params.seed + index * 0x9E3779B9) % 2**63)
        self._ahead: deque[float] = deque()

    def peek(self, count: int) -> list[float]:
        """The next numbers, from 0 to below 1."""
        while len(self._ahead) < count:
            self._ahead.append(torch.rand((), generator=self._generator, dtype=torch.float64).item())
        return list(islice(self._ahead, count))

    def use(self) -> None:
        """The next number is used up."""
        self.peek(1)
        self._ahead.popleft()


def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    points: Sequence[float],
    allowed: torch.Tensor | None = None,
    fixed: Mapping[int, int] | None = None,
) -> list[Sample]:
    """One token for each row. The device is waited for once, whatever the rows ask for.

    Args:
        logits: `[rows, vocabulary]`.
        params: settings of each row.
        points: each row's random number, from 0 to below 1, so that a draw never depends on what else is in the batch.
        allowed: on the host, `[rows, vocabulary]`, the tokens to choose among; None for all. Log-probabilities do not heed it.
        fixed: the tokens of rows where there is nothing to choose.
    """
    plain = logits
    if allowed is not None:
        logits = logits.masked_fill(~allowed.to(logits.device), float("-inf"))
    tokens = argmax_rows(logits)
    fixed = fixed or {}
    if fixed:
        tokens[upload(list(fixed), logits.device)] = upload(list(fixed.values()), logits.device)
    drawing = [row for row, settings in enumerate(params) if not settings.is_greedy and row not in fixed]
    # In two parts, because a filtered row is drawn from in another order.
    filtered = {row for row in drawing if is_filtered(params[row], logits.shape[-1])}
    for rows in (sorted(filtered), [row for row in drawing if row not in filtered]):
        if rows:
            at = upload(rows, logits.device)
            tokens[at] = _draw(logits[at].float(), [params[row] for row in rows], [points[row] for row in rows])
    return _with_logprobs(plain, tokens, [each.logprobs for each in params])


def is_filtered(params: SamplingParams, vocabulary: int) -> bool:
    """Whether only some of the likeliest tokens are drawn from."""
    return params.top_p < 1.0 or 0 < params.top_k < vocabulary


def argmax_rows(logits: torch.Tensor) -> torch.Tensor:
    """The token with the highest logit in each row, the first of several: `[rows]`, where the logits are."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    # On a CPU torch compares one number after the other; numpy takes many at once, and is five to fifty times as fast.
    if logits.dtype not in (torch.bfloat16, torch.float16):
        return torch.from_numpy(logits.float().numpy().argmax(axis=-1))
    # Numbers above 0 are in the order of their bits, so that they need not be converted.
    bits = logits.view(torch.int16).numpy()
    found = bits.argmax(axis=-1)
    for row in np.flatnonzero(np.take_along_axis(bits, found[:, None], axis=-1) <= 0):
        found[row] = logits[row].float().numpy().argmax()
    return torch.from_numpy(found)


def _with_logprobs(logits: torch.Tensor, tokens: torch.Tensor, asked: Sequence[int | None]) -> list[Sample]:
    """The tokens with the log-probabilities that their rows ask for."""
    rows = [row for row, count in enumerate(asked) if count is not None]
    if not rows:
        return [Sample(token) for token in tokens.tolist()]
    most = min(max(count or 0 for count in asked), logits.shape[-1])
    at = upload(rows, logits.device)
    logprobs = logits[at].float().log_softmax(dim=-1)
    values, ids = logprobs.topk(most)
    chosen = logprobs.gather(1, tokens[at][:, None])
    # One copy brings all of it: doubles hold token ids and float32 exactly.
    found = torch.cat([part.double().flatten() for part in (tokens, chosen, values, ids)]).tolist()
    count, start = len(asked), len(asked) + len(rows)
    samples = [Sample(int(token)) for token in found[:count]]
    for place, row in enumerate(rows):
        first, wanted = start + place * most, min(asked[row] or 0, most)
        best = found[first : first + wanted]
        names = map(int, found[first + len(rows) * most :][:wanted])
        samples[row] = Sample(int(found[row]), found[count + place], tuple(zip(names, best, strict=True)))
    return samples


def _draw(logits: torch.Tensor, params: Sequence[SamplingParams], points: Sequence[float]) -> torch.Tensor:
    """A token for each row, where the device is, from one random number each; all rows are filtered, or none."""
    logits = logits / upload([each.temperature for each in params], logits.device, np.float32)[:, None]
    order = None
    if is_filtered(params[0], logits.shape[-1]):
        logits, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = _filter(logits, params)
    else:
        probabilities = logits.softmax(dim=-1)
    cumulative = probabilities.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
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


def score_tokens(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[Sample]:
    """How likely given tokens were.

    Args:
        logits: `[rows, vocabulary]`.
        tokens: one for each row.
        top: most likely alternatives to report.
    """
    samples: list[Sample] = []
    most = min(top, logits.shape[-1])
    # The probabilities of a long prompt over a large vocabulary would take gigabytes.
    for start in range(0, len(tokens), _ROWS):
        given = tokens[start : start + _ROWS]
        logprobs = logits[start : start + len(given)].float().log_softmax(dim=-1)
        chosen = logprobs.gather(1, upload(given, logits.device)[:, None])
        ranks = (logprobs > chosen).sum(dim=1, keepdim=True) + 1
        values, ids = logprobs.topk(most)
        # One copy for all of these rows, as in `_with_logprobs`.
        found = torch.cat([part.double() for part in (chosen, ranks, values, ids)], dim=1).tolist()
        samples += [
            Sample(token, value, tuple(zip(map(int, rest[most:]), rest[:most], strict=True)), int(rank))
            for token, (value, rank, *rest) in zip(given, found, strict=True)
        ]
    return samples
