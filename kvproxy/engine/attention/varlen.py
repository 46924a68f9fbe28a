"""Prefill by FlashAttention through `torch.nn.attention.varlen`: one call for all prompts of a step.

Its own paged mode wants blocks of multiples of 256 tokens (FlashAttention 2), so what a sequence has in blocks is
gathered first, each layer anew: 2 * kv_heads * head_dim values a token, little next to the attention over them.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch

from kvproxy.engine.attention.interface import KV, Attend
from kvproxy.engine.pool import KVPool
from kvproxy.engine.span import Span
from kvproxy.engine.transfer import upload


class PackedAttention(Protocol):
    """Causal attention of packed sequences whose queries are the last of their keys."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: "Packing", scaling: float | None
    ) -> torch.Tensor:
        """`[queries, heads, head_dim]` for queries of that shape and `[keys, kv_heads, head_dim]`."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Where sequences lie in packed tensors.

    Attributes:
        query_ends, key_ends: `[sequences + 1]` int32, from 0 on.
        longest_query, longest_key: of any one sequence.
    """

    query_ends: torch.Tensor
    key_ends: torch.Tensor
    longest_query: int
    longest_key: int


class VarlenPrefill:
    """One call for all spans.

    Args:
        attend: what computes it; FlashAttention unless a test brings its own.
    """

    name = "varlen"

    def __init__(self, attend: PackedAttention | None = None) -> None:
        self._attend = attend or flash

    def prepare(self, spans: Sequence[Span], pool: KVPool) -> Attend:
        device = pool.data.device
        lengths = [len(span.tokens) for span in spans]
        contexts = [span.end for span in spans]
        packing = Packing(
            upload([0, *accumulate(lengths)], device, np.int32),
            upload([0, *accumulate(contexts)], device, np.int32),
            max(lengths),
            max(contexts),
        )
        has_past = any(span.start for span in spans)
        return _Rows(packing, upload(_slots(spans, pool.block_size), device) if has_past else None, self._attend)


def _slots(spans: Sequence[Span], block_size: int) -> "np.ndarray[Any, Any]":
    """Where all tokens of the spans' sequences are, up to each span's end, `[tokens]`."""
    offsets = np.arange(block_size)
    tables = (np.asarray(span.blocks[: -(-span.end // block_size)])[:, None] for span in spans)
    return np.concatenate(
        [(table * block_size + offsets).ravel()[: span.end] for span, table in zip(spans, tables, strict=True)]
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """`slots` are None where no sequence has a past, so that the rows' own keys are all there are."""

    packing: Packing
    slots: torch.Tensor | None
    attend: PackedAttention

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scaling: float | None) -> torch.Tensor:
        key, value = new
        if self.slots is not None:
            key, value = (part.flatten(0, 1).index_select(0, self.slots) for part in cached)
        return self.attend(query, key, value, self.packing, scaling)


def why_not(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why FlashAttention cannot run here, or None where it can."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: F401
    except ImportError:
        return "this torch has no torch.nn.attention.varlen: it needs 2.10 or newer"
    if device.type != "cuda":
        return "it needs a CUDA device"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs a GPU of compute capability 8.0 or newer"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it computes in float16 and bfloat16, not in {str(dtype).removeprefix('torch.')}"
    if head_dim % 8 or head_dim > 256:
        return f"its heads are multiples of 8 wide, up to 256, and this model's are {head_dim}"
    return None


def flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, scaling: float | None
) -> torch.Tensor:
    """`varlen_attn`, by whichever names this torch knows its options."""
    from torch.nn.attention.varlen import varlen_attn

    known = _options()
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    if "enable_gqa" in known:
        options["enable_gqa"] = query.shape[1] != key.shape[1]
    if scaling is not None:
        if "scale" in known:
            options["scale"] = scaling
        else:
            query = query * (scaling * query.shape[-1] ** 0.5)
    output = varlen_attn(
        query, key, value, packing.query_ends, packing.key_ends, packing.longest_query, packing.longest_key, **options
    )
    assert isinstance(output, torch.Tensor)
    return output


@cache
def _options() -> frozenset[str]:
    from torch.nn.attention.varlen import varlen_attn

    return frozenset(inspect.signature(varlen_attn).parameters)
