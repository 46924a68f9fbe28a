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

from kvproxy.engine.attention.interface import KV, NO_FEATURES, AttentionFeatures, AttentionOp, ScoreOptions
from kvproxy.engine.models.layer_groups import FULL, LayerGroup
from kvproxy.engine.scheduler.token_span import TokenSpan
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.transfer import upload


class PackedAttention(Protocol):
    """Causal attention of packed sequences whose queries are the last of their keys."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: "PackedLayout", scores: ScoreOptions
    ) -> torch.Tensor:
        """`[queries, heads, head_dim]` for queries of that shape and `[keys, kv_heads, head_dim]`; no capped scores."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where sequences lie in packed tensors.

    Attributes:
        query_ends, key_ends: `[sequences + 1]` int32, from 0 on.
        longest_query, longest_key: of any one sequence.
        window: tokens that a query sees, itself included; None for all up to itself.
    """

    query_ends: torch.Tensor
    key_ends: torch.Tensor
    longest_query: int
    longest_key: int
    window: int | None = None


class VarlenPrefill:
    """One call for all spans.

    Args:
        attend: what computes it; FlashAttention unless a test brings its own.
    """

    name = "varlen"

    def __init__(self, attend: PackedAttention | None = None) -> None:
        self._attend = attend or flash_attention

    def prepare(self, spans: Sequence[TokenSpan], pool: KVPool, group: LayerGroup = FULL) -> AttentionOp:
        device = pool.data.device
        # Chunks that cannot see each other become sequences of their own; a window is cut by the kernel.
        most = max(len(span.tokens) for span in spans)
        runs = [(span, *run) for span in spans for run in group.runs(span.start, span.end, most)]
        lengths = [end - start for _, _, start, end in runs]
        contexts = [end - first for _, first, _, end in runs]
        packing = PackedLayout(
            upload([0, *accumulate(lengths)], device, np.int32),
            upload([0, *accumulate(contexts)], device, np.int32),
            max(lengths),
            max(contexts),
            group.reach if group.kind == "sliding_window" else None,
        )
        has_past = any(first < start for _, first, start, _ in runs)
        slots = upload(_slots(runs, pool.block_size, group.number), device) if has_past else None
        return _Rows(packing, slots, self._attend)


def _slots(runs: Sequence[tuple[TokenSpan, int, int, int]], block_size: int, group: int) -> "np.ndarray[Any, Any]":
    """Where the tokens that each run sees are in a group's layers, `[tokens]`."""
    offsets = np.arange(block_size)
    parts = []
    for span, first, _, end in runs:
        begin = first // block_size
        table = np.asarray(span.tables[group][begin : -(-end // block_size)])[:, None]
        parts.append((table * block_size + offsets).ravel()[first - begin * block_size : end - begin * block_size])
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class _Rows:
    """`slots` are None where no run sees anything before it, so that the rows' own keys are all there are."""

    packing: PackedLayout
    slots: torch.Tensor | None
    attend: PackedAttention

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scores: ScoreOptions) -> torch.Tensor:
        key, value = new
        if self.slots is not None:
            key, value = (part.flatten(0, 1).index_select(0, self.slots) for part in cached)
        return self.attend(query, key, value, self.packing, scores)


def unsupported_reason(
    device: torch.device, dtype: torch.dtype, head_dim: int, needs: AttentionFeatures = NO_FEATURES
) -> str | None:
    """Why FlashAttention cannot run here, or None where it can."""
    try:
        known = _options()
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
    if needs.caps:
        return "it cannot cap scores, as this model does"
    if (needs.windows and "window_size" not in known) or (needs.sinks and "return_aux" not in known):
        return "this torch's varlen_attn knows neither windows nor sinks"
    return None


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: PackedLayout, scores: ScoreOptions
) -> torch.Tensor:
    """`varlen_attn`, by whichever names this torch knows its options."""
    from torch.nn.attention.varlen import varlen_attn

    known = _options()
    left = -1 if packing.window is None else packing.window - 1
    options: dict[str, Any] = {"window_size": (left, 0)} if "window_size" in known else {"is_causal": True}
    if "enable_gqa" in known:
        options["enable_gqa"] = query.shape[1] != key.shape[1]
    if scores.scaling is not None:
        if "scale" in known:
            options["scale"] = scores.scaling
        else:
            query = query * (scores.scaling * query.shape[-1] ** 0.5)
    if scores.sinks is not None:
        from torch.nn.attention.varlen import AuxRequest

        options["return_aux"] = AuxRequest(lse=True)
    output = varlen_attn(
        query, key, value, packing.query_ends, packing.key_ends, packing.longest_query, packing.longest_key, **options
    )
    if scores.sinks is None:
        assert isinstance(output, torch.Tensor)
        return output
    output, logsums = output
    return apply_sinks(output, logsums.transpose(0, 1), scores.sinks)


def apply_sinks(output: torch.Tensor, logsums: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Attention as it is when sinks take their share.

    Args:
        output: attention without them, `[rows, heads, head_dim]`.
        logsums: log-sum-exp of each row's scores, `[rows, heads]`.
        sinks: `[heads]`.
    """
    share = torch.sigmoid(logsums.float() - sinks.float())
    return (output.float() * share[..., None]).to(output.dtype)


@cache
def _options() -> frozenset[str]:
    from torch.nn.attention.varlen import varlen_attn

    return frozenset(inspect.signature(varlen_attn).parameters)
