"""Launches the Triton kernels that compute the attention of decode steps."""

import math
from functools import partial
from typing import Any

import torch

from kvproxy.engine.attention.interface import KV, AttentionOp, ScoreOptions
from kvproxy.engine.models.layer_groups import FULL_ATTENTION, LayerGroup
from kvproxy.engine.worker.kv_pool import KVPool

# Maximum number of key elements in one load of a program, by bytes per element. More would spill registers.
_TILE_ELEMENTS = {2: 8192, 4: 2048}


class TritonDecode:
    """Attention of decode steps by the two kernels of `triton_kernels`.

    `max_splits` limits the splits of a sequence's keys, and `min_split` is the minimum number of keys per split, both powers
    of two. A launch has about `num_programs` Triton programs.
    """

    supports_capture = True

    def __init__(self, max_splits: int = 64, *, min_split: int = 128, num_programs: int = 2048) -> None:
        self.max_splits = max_splits
        self.min_split = min_split
        self.num_programs = num_programs

    def prepare(
        self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool, group: LayerGroup = FULL_ATTENTION
    ) -> AttentionOp:
        return partial(self._attend, table, lengths, group)

    def _attend(
        self,
        table: torch.Tensor,
        lengths: torch.Tensor,
        group: LayerGroup,
        query: torch.Tensor,
        new: KV,
        cached: KV,
        scores: ScoreOptions,
    ) -> torch.Tensor:
        from kvproxy.engine.attention.triton_kernels import merge_splits, split_kv_attention

        keys, values = cached
        query = query if query.stride(-1) == 1 else query.contiguous()
        rows, heads, head_dim = query.shape
        block_size, kv_heads = keys.shape[1:3]
        longest = table.shape[1] * block_size
        if group.kind != "full":
            longest = min(longest, group.window)
        num_splits = min(self.max_splits, -(-longest // self.min_split))
        split_outputs = torch.empty((rows, heads, num_splits, head_dim), dtype=torch.float32, device=query.device)
        logsums = torch.empty((rows, heads, num_splits), dtype=torch.float32, device=query.device)
        output = torch.empty((rows, heads, head_dim), dtype=query.dtype, device=query.device)
        padded_head_dim = max(16, _power_of_two(head_dim))
        padded_heads_per_kv_head = max(16, _power_of_two(heads // kv_heads))
        options = launch_options(padded_heads_per_kv_head)
        split_programs = min(num_splits, -(-self.num_programs // (rows * kv_heads)))
        scale = scores.scaling if scores.scaling is not None else head_dim**-0.5
        constants = {
            "MIN_SPLIT": self.min_split,
            "MAX_SPLITS": self.max_splits,
            "HEAD_DIM": head_dim,
            "PADDED_DIM": padded_head_dim,
            "KIND": group.kind,
            "WINDOW": group.window,
        }
        split_kv_attention[(rows, kv_heads, split_programs)](
            query,
            keys,
            values,
            table,
            lengths,
            split_outputs,
            logsums,
            scale / scores.softcap if scores.softcap is not None else scale * math.log2(math.e),
            scores.softcap * math.log2(math.e) if scores.softcap is not None else 0.0,
            query.stride(0),
            query.stride(1),
            *keys.stride()[:3],
            table.stride(0),
            num_splits,
            GROUP=heads // kv_heads,
            BLOCK_SIZE=block_size,
            PADDED_GROUP=padded_heads_per_kv_head,
            TILE=tile_size(padded_head_dim, query.element_size(), padded_heads_per_kv_head),
            DOT_TYPE=_dot_input_type(query),
            HAS_SOFTCAP=scores.softcap is not None,
            **constants,
            **options,
        )
        merge_splits[(rows, heads)](
            split_outputs,
            logsums,
            lengths,
            output if scores.sinks is None else scores.sinks,
            output,
            num_splits,
            HAS_SINKS=scores.sinks is not None,
            **constants,
        )
        return output


def launch_options(padded_heads_per_kv_head: int) -> dict[str, int]:
    # Four warps have enough registers for the smallest groups only. More stages are slower on an H100.
    return {"num_warps": 8 if padded_heads_per_kv_head > 16 else 4, "num_stages": 2}


def unsupported_reason(device: torch.device) -> str | None:
    try:
        from triton.runtime.interpreter import InterpretedFunction

        from kvproxy.engine.attention import triton_kernels
    except ImportError:
        return "triton is not installed"
    if isinstance(triton_kernels.split_kv_attention, InterpretedFunction):
        return None
    if device.type == "cuda":
        is_recent = torch.cuda.get_device_capability(device) >= (8, 0)
        return None if is_recent else "it needs a GPU of compute capability 8.0 or newer"
    return "it needs a CUDA device, or Triton's interpreter (TRITON_INTERPRET=1)"


def tile_size(padded_head_dim: int, element_bytes: int, padded_heads_per_kv_head: int) -> int:
    """Return the number of keys that a Triton program loads at a time; every split's size is a multiple of it."""
    # The scores of large groups take the registers of half of the keys.
    share = 2 if padded_heads_per_kv_head > 64 else 1
    return min(128, max(16, _TILE_ELEMENTS[element_bytes] // padded_head_dim // share))


def _dot_input_type(query: torch.Tensor) -> Any:
    import triton.language as tl

    if query.dtype == torch.bfloat16 and not query.is_cuda:
        return tl.float32
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[query.dtype]


def _power_of_two(minimum: int) -> int:
    return 1 << (minimum - 1).bit_length()
