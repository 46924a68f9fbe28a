"""Decoding by our own Triton kernels: block tables and lengths are read on the device."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from kvproxy.engine.attention.interface import KV, AttentionOp, ScoreOptions
from kvproxy.engine.models.layer_groups import FULL, LayerGroup
from kvproxy.engine.worker.kv_pool import KVPool

_TILE = {2: 8192, 4: 2048}
"""Elements of keys that a program holds at once, by their bytes; more of four bytes would not fit the registers."""
_ROOMY = 160 << 10
"""Bytes of shared memory of a processor from which on three programs with two buffers each fit it."""
_DOUBLED = 5
"""Fewest stages that give keys and values two buffers each, so that one is filled while the other is read; found by compiling
(`python -m tests.gpu.compiled`)."""


class TritonDecode:
    """Two launches a layer.

    Args:
        most: most stretches that a sequence is cut into, a power of two.
        split: fewest keys in a stretch, a power of two from 128 on; stretches are multiples of it.
        programs: about so many programs are launched; where a step has more stretches, a program takes several. A step that
            is captured for long sequences would launch mostly idle ones otherwise.
        warps, stages: how Triton compiles the first kernel; by default what `launch_options` says. They change no result.
    """

    name = "triton"
    capturable = True

    def __init__(
        self,
        most: int = 64,
        *,
        split: int = 128,
        programs: int = 2048,
        warps: int | None = None,
        stages: int | None = None,
    ) -> None:
        self._most = most
        self._split = split
        self._programs = programs
        self._warps = warps
        self._stages = stages

    def prepare(
        self, table: torch.Tensor, lengths: torch.Tensor, pool: KVPool, group: LayerGroup = FULL
    ) -> AttentionOp:
        roomy = _shared_memory(table.device) >= _ROOMY
        return _Rows(table, lengths, group, self._most, self._split, self._programs, self._warps, self._stages, roomy)


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory of one of a GPU's processors."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor)


def launch_options(padded_group: int, *, roomy: bool) -> dict[str, int]:
    """How Triton compiles the first kernel.

    Args:
        padded_group: query heads of a key head, filled up to a power of two.
        roomy: whether the GPU's processors have the shared memory for two buffers.
    """
    # Groups of 64 and more take the large matrix instructions, which double the buffers by themselves. The registers of
    # four warps suffice for the smallest groups only.
    return {
        "num_warps": 8 if padded_group > 16 else 4,
        "num_stages": _DOUBLED if roomy and padded_group < 64 else 2,
    }


def unsupported_reason(device: torch.device) -> str | None:
    """Why Triton's kernels cannot run on a device, or None where they can."""
    try:
        from triton.runtime.interpreter import InterpretedFunction

        from kvproxy.engine.attention import triton_kernels
    except ImportError:
        return "triton is not installed"
    if isinstance(triton_kernels.split_kv_attention, InterpretedFunction):
        return None
    if device.type == "cuda":
        new = torch.cuda.get_device_capability(device) >= (8, 0)
        return None if new else "it needs a GPU of compute capability 8.0 or newer"
    return "it needs a CUDA device, or Triton's interpreter (TRITON_INTERPRET=1)"


@dataclass(frozen=True, slots=True)
class _Rows:
    table: torch.Tensor
    lengths: torch.Tensor
    group: LayerGroup
    most: int
    split: int
    programs: int
    warps: int | None
    stages: int | None
    roomy: bool

    def __call__(self, query: torch.Tensor, new: KV, cached: KV, scores: ScoreOptions) -> torch.Tensor:
        from kvproxy.engine.attention.triton_kernels import merge_splits, split_kv_attention

        keys, values = cached
        query = query if query.stride(-1) == 1 else query.contiguous()
        rows, heads, head_dim = query.shape
        block_size, kv_heads = keys.shape[1:3]
        longest = self.table.shape[1] * block_size
        if self.group.kind != "full":
            longest = min(longest, self.group.reach)
        stretches = min(self.most, -(-longest // self.split))
        partial = torch.empty((rows, heads, stretches, head_dim), dtype=torch.float32, device=query.device)
        logsums = torch.empty((rows, heads, stretches), dtype=torch.float32, device=query.device)
        output = torch.empty((rows, heads, head_dim), dtype=query.dtype, device=query.device)
        padded_dim = max(16, _power_of_two(head_dim))
        padded_group = max(16, _power_of_two(heads // kv_heads))
        options = launch_options(padded_group, roomy=self.roomy)
        options["num_warps"] = self.warps or options["num_warps"]
        options["num_stages"] = self.stages or options["num_stages"]
        shares = min(stretches, -(-self.programs // (rows * kv_heads)))
        scale = scores.scaling if scores.scaling is not None else head_dim**-0.5
        # Every launch compiles for one kind of model, so what it does not have costs nothing.
        limits = {"KIND": self.group.kind, "REACH": self.group.reach}
        split_kv_attention[(rows, kv_heads, shares)](
            query,
            keys,
            values,
            self.table,
            self.lengths,
            partial,
            logsums,
            scale / scores.cap if scores.cap is not None else scale * math.log2(math.e),
            scores.cap * math.log2(math.e) if scores.cap is not None else 0.0,
            query.stride(0),
            query.stride(1),
            *keys.stride()[:3],
            self.table.stride(0),
            stretches,
            SPLIT=self.split,
            MOST=self.most,
            GROUP=heads // kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_SIZE=block_size,
            PADDED_GROUP=padded_group,
            PADDED_DIM=padded_dim,
            TILE=tile_size(padded_dim, query.element_size(), padded_group),
            PRODUCT=_product_type(query),
            CAPPED=scores.cap is not None,
            **limits,
            **options,
        )
        merge_splits[(rows, heads)](
            partial,
            logsums,
            self.lengths,
            # What is not read may be any tensor.
            output if scores.sinks is None else scores.sinks,
            output,
            stretches,
            SPLIT=self.split,
            MOST=self.most,
            HEAD_DIM=head_dim,
            PADDED_DIM=padded_dim,
            HAS_SINKS=scores.sinks is not None,
            **limits,
        )
        return output


def tile_size(padded_dim: int, element_size: int, padded_group: int) -> int:
    """Keys that a program holds at once; a power of two, so that it divides every stretch."""
    # The scores of large groups need the registers that half of the keys would take.
    share = 2 if padded_group > 64 else 1
    return min(128, max(16, _TILE[element_size] // padded_dim // share))


def _product_type(query: torch.Tensor) -> Any:
    """Type of the operands of matrix products; the interpreter takes the bits of bfloat16 for integers, so not there."""
    import triton.language as tl

    if query.dtype == torch.bfloat16 and not query.is_cuda:
        return tl.float32
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[query.dtype]


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
