"""One step's work as tensors: a packed row of tokens, where each is written, and what each sequence sees."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvproxy.engine.pool import KVPool


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one sequence to compute next, `start` to `end - 1` of it, with its block table.

    The last `drafts` of the tokens are guesses.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    drafts: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """A run of prompt tokens in the packed row.

    Attributes:
        start, end: its place in the row.
        context: tokens of the sequence up to the span's end.
        blocks: the sequence's blocks over its context.
        mask: `[span, context]`, 0 where a token looks and -inf where not; None for a span without a past, plainly causal.
    """

    start: int
    end: int
    context: int
    blocks: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Everything that attention needs of a step; prefill spans come first in the row, then one token a decoding sequence.

    Attributes:
        pool: KV tensors.
        slots: `[tokens]`, block * block_size + offset that each token's key and value go to.
        prefills: runs of prompt tokens.
        decode_start: where decoding rows begin in the row.
        decode_blocks: `[rows, blocks]`, padded with block 0.
        decode_mask: `[rows, 1, 1, blocks * block_size]`, 0 where a row may look and -inf elsewhere.
    """

    pool: KVPool
    slots: torch.Tensor
    prefills: tuple[PrefillSpan, ...]
    decode_start: int
    decode_blocks: torch.Tensor
    decode_mask: torch.Tensor

    @property
    def num_decodes(self) -> int:
        return self.decode_blocks.shape[0]


def build_batch(pool: KVPool, prefills: Sequence[Span], decodes: Sequence[Span]) -> StepBatch:
    """Tensors for a step; each decode span has exactly one token."""
    device, size = pool.data.device, pool.block_size
    slots: list[int] = []
    spans: list[PrefillSpan] = []
    for span in prefills:
        begin = len(slots)
        slots += [span.blocks[at // size] * size + at % size for at in range(span.start, span.end)]
        used = torch.tensor(span.blocks[: -(-span.end // size)], device=device)
        mask = None
        if span.start:
            rows = torch.arange(span.start, span.end, device=device)[:, None]
            mask = _additive(torch.arange(span.end, device=device)[None, :] <= rows, pool.data.dtype)
        spans.append(PrefillSpan(begin, len(slots), span.end, used, mask))
    decode_start = len(slots)
    slots += [span.blocks[span.start // size] * size + span.start % size for span in decodes]
    width = max((-(-span.end // size) for span in decodes), default=0)
    table = [list(span.blocks[:width]) + [0] * (width - len(span.blocks)) for span in decodes]
    ends = torch.tensor([span.end for span in decodes], device=device)
    return StepBatch(
        pool=pool,
        slots=torch.tensor(slots, device=device),
        prefills=tuple(spans),
        decode_start=decode_start,
        decode_blocks=torch.tensor(table, dtype=torch.long, device=device).reshape(len(decodes), width),
        decode_mask=_additive(torch.arange(width * size, device=device)[None] < ends[:, None], pool.data.dtype)[
            :, None, None
        ],
    )


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask to add to the scores; made once a step, where SDPA would convert a boolean one in every layer."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
