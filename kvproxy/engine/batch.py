"""One step's work as tensors: a packed row of tokens, where each is written, and what each sequence sees."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvproxy.engine.attention.backend import Backends
from kvproxy.engine.attention.interface import Attend
from kvproxy.engine.pool import KVPool
from kvproxy.engine.span import Span
from kvproxy.engine.transfer import upload


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Everything that the model needs of a step; prefill spans come first in the row, then one token a decoding sequence.

    Attributes:
        pool: KV tensors.
        tokens, positions: `[1, tokens]`, the row and each token's place in its sequence.
        slots: `[tokens]`, block * block_size + offset that each token's key and value go to.
        decode_start: where decoding rows begin in the row.
        prefill, decode: attention of the two parts of the row; None where a part is empty.
    """

    pool: KVPool
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    decode_start: int
    prefill: Attend | None
    decode: Attend | None


def build_batch(pool: KVPool, prefills: Sequence[Span], decodes: Sequence[Span], backends: Backends) -> StepBatch:
    """Tensors for a step; each decode span has exactly one token."""
    device, size = pool.data.device, pool.block_size
    spans = [*prefills, *decodes]
    row = upload(
        [
            [token for span in spans for token in span.tokens],
            [at for span in spans for at in range(span.start, span.end)],
            [slot for span in spans for slot in span.slots(size)],
        ],
        device,
    )
    return StepBatch(
        pool=pool,
        tokens=row[:1],
        positions=row[1:2],
        slots=row[2],
        decode_start=sum(len(span.tokens) for span in prefills),
        prefill=backends.prefill.prepare(prefills, pool) if prefills else None,
        decode=backends.decode.prepare(*decode_rows(decodes, size, device), pool) if decodes else None,
    )


def decode_rows(spans: Sequence[Span], block_size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Block table `[rows, blocks]` int32 and lengths `[rows]` of decoding sequences, on a device."""
    table = block_table([span.blocks for span in spans], max(-(-span.end // block_size) for span in spans))
    return upload(table, device, np.int32), upload([span.end for span in spans], device)


def block_table(rows: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """Blocks of several sequences, cut or padded with block 0 to one width."""
    return [[*blocks[:width], *[0] * (width - len(blocks))] for blocks in rows]
