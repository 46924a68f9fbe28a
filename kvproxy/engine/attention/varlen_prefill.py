"""Prefill by FlashAttention through `torch.nn.attention.varlen`: one call per layer for all prompts of a step.

Each layer first copies its cached keys and values, because FlashAttention 2 reads paged blocks only if their size is a
multiple of 256 tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from kvproxy.engine.attention.interface import KV, AttentionOp, ScoreOptions
from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup, QueryRange
from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.worker.host_device_copies import upload
from kvproxy.engine.worker.kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Boundaries of sequences in concatenated queries and keys."""

    query_ends: torch.Tensor  # 0, then the end of each sequence, `[sequences + 1]` int32
    key_ends: torch.Tensor
    max_query_len: int
    max_key_len: int
    window: int | None = None  # number of tokens to which a token attends, itself included; None for all


PackedAttention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, PackedLayout, ScoreOptions], torch.Tensor]
"""Computes causal attention of concatenated queries, keys, and values; the queries are the last tokens of each sequence."""


class VarlenPrefill:
    def __init__(self, attend: PackedAttention | None = None) -> None:
        self._attend = attend or flash_attention

    def prepare(self, spans: Sequence[TokenSpan], pool: KVPool, group: LayerGroup = FULL_ATTENTION) -> AttentionOp:
        device = pool.data.device
        # Chunks become separate sequences; the kernel applies windows.
        most = max(len(span.tokens) for span in spans)
        runs = [(span, queries) for span in spans for queries in group.split_by_window(span.start, span.end, most)]
        lengths = [queries.end - queries.start for _, queries in runs]
        contexts = [queries.end - queries.first_visible_key for _, queries in runs]
        layout = PackedLayout(
            upload([0, *accumulate(lengths)], device, np.int32),
            upload([0, *accumulate(contexts)], device, np.int32),
            max(lengths),
            max(contexts),
            group.window if group.kind == "sliding_window" else None,
        )
        has_past = any(queries.first_visible_key < queries.start for _, queries in runs)
        slots = upload(_slots_of_visible_keys(runs, pool.block_size, group.index), device) if has_past else None

        def attend(query: torch.Tensor, new: KV, cached: KV, scores: ScoreOptions) -> torch.Tensor:
            key, value = new
            if slots is not None:
                key, value = (part.flatten(0, 1).index_select(0, slots) for part in cached)
            return self._attend(query, key, value, layout, scores)

        return attend


def _slots_of_visible_keys(
    runs: Sequence[tuple[TokenSpan, QueryRange]], block_size: int, group: int
) -> "np.ndarray[Any, Any]":
    offsets = np.arange(block_size)
    parts = []
    for span, (first, _, end) in runs:
        begin = first // block_size
        table = np.asarray(span.block_tables[group][begin : -(-end // block_size)])[:, None]
        parts.append((table * block_size + offsets).ravel()[first - begin * block_size : end - begin * block_size])
    return np.concatenate(parts)


def unsupported_reason(
    device: torch.device, dtype: torch.dtype, head_dim: int, *, has_softcap: bool = False
) -> str | None:
    if device.type != "cuda":
        return "it needs a CUDA device"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs a GPU of compute capability 8.0 or newer"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"it computes in float16 and bfloat16, not in {str(dtype).removeprefix('torch.')}"
    if head_dim % 8 or head_dim > 256:
        return f"its heads are multiples of 8 wide, up to 256, and this model's are {head_dim}"
    if has_softcap:
        return "it does not support this model's softcap"
    return None


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: PackedLayout, scores: ScoreOptions
) -> torch.Tensor:
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    left = -1 if layout.window is None else layout.window - 1
    # torch before 2.12 has no such argument, and always allows grouped heads.
    grouped: dict[str, Any] = {"enable_gqa": True} if query.shape[1] != key.shape[1] and _has_enable_gqa() else {}
    outputs = varlen_attn(
        query,
        key,
        value,
        layout.query_ends,
        layout.key_ends,
        layout.max_query_len,
        layout.max_key_len,
        return_aux=None if scores.sinks is None else AuxRequest(lse=True),
        scale=scores.scaling,
        window_size=(left, 0),
        **grouped,
    )
    if scores.sinks is None:
        assert isinstance(outputs, torch.Tensor)
        return outputs
    output, logsums = outputs
    return apply_sinks(output, logsums.transpose(0, 1), scores.sinks)


@cache
def _has_enable_gqa() -> bool:
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in signature(varlen_attn).parameters


def apply_sinks(output: torch.Tensor, logsums: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    share = torch.sigmoid(logsums.float() - sinks.float())
    return (output.float() * share[..., None]).to(output.dtype)
