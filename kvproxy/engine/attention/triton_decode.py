"""Decoding by our own Triton kernels: block tables and lengths are read on the device."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from kvproxy.engine.attention.interface import KV, Attend
from kvproxy.engine.pool import KVPool

_TILE = {2: 8192, 4: 2048}
"""Elements of keys that a program holds at once, by their bytes; more of four bytes would not fit the registers."""


class TritonDecode:
    """Two launches a layer.

    Args:
        most: most stretches that a sequence is cut into, a power of two.
        warps, stages: how Triton compiles the first kernel; they change no result.
    """

    name = "triton"
    capturable = True

    def __init__(self, most: int = 64, *, warps: int = 4, stages: int = 2) -> None:
        self._most = most
        self._options = {"num_warps": warps, "num_stages": stages}

    def prepare(self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool) -> Attend:
        return _Rows(table, lengths, self._most, self._options)


def why_not(device: torch.device) -> str | None:
    """Why Triton's kernels cannot run on a device, or None where they can."""
    try:
        from triton.runtime.interpreter import InterpretedFunction

        from kvproxy.engine.attention import decode_kernel
    except ImportError:
        return "triton is not installed"
    if isinstance(decode_kernel.attend_stretch, InterpretedFunction):
        return None
    if device.type == "cuda":
        new = torch.cuda.get_device_capability(device) >= (8, 0)
        return None if new else "it needs a GPU of compute capability 8.0 or newer"
    return "it needs a CUDA device, or Triton's interpreter (TRITON_INTERPRET=1)"


@dataclass(frozen=True, slots=True)
class _Rows:
    table: torch.Tensor
    lengths: torch.Tensor
    most: int
    options: dict[str, int]

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scaling: float | None) -> torch.Tensor:
        from kvproxy.engine.attention.decode_kernel import SPLIT, attend_stretch, merge_stretches

        keys, values = cached
        query = query if query.stride(-1) == 1 else query.contiguous()
        rows, heads, head_dim = query.shape
        block_size, kv_heads = keys.shape[1:3]
        longest = self.table.shape[1] * block_size
        stretches = min(self.most, -(-longest // SPLIT))
        partial = torch.empty((rows, heads, stretches, head_dim), dtype=torch.float32, device=query.device)
        logsums = torch.empty((rows, heads, stretches), dtype=torch.float32, device=query.device)
        output = torch.empty((rows, heads, head_dim), dtype=query.dtype, device=query.device)
        padded_dim = max(16, _power_of_two(head_dim))
        scale = (scaling if scaling is not None else head_dim**-0.5) * math.log2(math.e)
        attend_stretch[(rows, kv_heads, stretches)](
            query,
            keys,
            values,
            self.table,
            self.lengths,
            partial,
            logsums,
            scale,
            query.stride(0),
            query.stride(1),
            *keys.stride()[:3],
            self.table.stride(0),
            SPLIT=SPLIT,
            MOST=self.most,
            GROUP=heads // kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=block_size,
            PADDED_GROUP=max(16, _power_of_two(heads // kv_heads)),
            PADDED_DIM=padded_dim,
            TILE=tile_of(padded_dim, query.element_size()),
            PRODUCT=_product_type(query),
            **self.options,
        )
        merge_stretches[(rows, heads)](
            partial,
            logsums,
            self.lengths,
            output,
            stretches,
            SPLIT=SPLIT,
            MOST=self.most,
            HEAD_DIM=head_dim,
            PADDED_DIM=padded_dim,
        )
        return output


def tile_of(padded_dim: int, element_size: int) -> int:
    """Keys that a program holds at once; a power of two, so that it divides every stretch."""
    return min(128, max(16, _TILE[element_size] // padded_dim))


def _product_type(query: torch.Tensor) -> Any:
    """Type of the operands of matrix products; the interpreter takes the bits of bfloat16 for integers, so not there."""
    import triton.language as tl

    if query.dtype == torch.bfloat16 and not query.is_cuda:
        return tl.float32
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[query.dtype]


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
