"""Compiles the decode kernels, and reports the GPU resources that they need: `python -m tests.gpu.compiled [NAME ...]`.

It needs Triton and no GPU. The shape is that of a 7B model: 32 heads over 8, 128 wide, blocks of 16.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvproxy.engine.attention import triton_kernels
from kvproxy.engine.attention.triton_decode import launch_options, tile_size

_TYPES = {"bf16": (tl.bfloat16, 2), "fp16": (tl.float16, 2), "fp32": (tl.float32, 4)}
_CUT = {"MIN_SPLIT": 128, "MAX_SPLITS": 64, "HEAD_DIM": 128, "PADDED_DIM": 128}
Kind = dict[str, Any]
FULL_ATTENTION: Kind = {"KIND": "full", "WINDOW": 0, "HAS_SOFTCAP": False}
WINDOW: Kind = {"KIND": "sliding_window", "WINDOW": 4096, "HAS_SOFTCAP": True}
_SCRATCH = {"partial": "*fp32", "logsums": "*fp32", "lengths": "*i64"}
_ALIGNED = ("query_row", "query_head", "pool_block", "pool_slot", "pool_head")


def facts(
    kernel: Any, capability: int, pointers: dict[str, str], constants: dict[str, Any], options: dict[str, int]
) -> dict[str, int]:
    names = kernel.arg_names
    kinds = {"scale": "fp32", "softcap": "fp32"} | pointers | dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fn=kernel,
        signature={name: kinds.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (names.index(name),): [["tt.divisibility", 16]] for name in names if name in pointers or name in _ALIGNED
        },
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    (found,) = re.findall(r"REG:(\d+) STACK:(\d+)", usage)
    return {
        "registers": int(found[0]),
        "stack": int(found[1]),
        "shared": compiled.metadata.shared,
        "warps": options["num_warps"],
    }


def attend(capability: int, dtype: str, group: int, *, kind: Kind = FULL_ATTENTION) -> dict[str, int]:
    product, size = _TYPES[dtype]
    padded = max(16, 1 << (group - 1).bit_length())
    shape = {
        "GROUP": group,
        "PADDED_GROUP": padded,
        "BLOCK_SIZE": 16,
        "TILE": tile_size(128, size, padded),
        "DOT_TYPE": product,
    }
    content = dict.fromkeys(("query", "keys", "values"), f"*{dtype}") | {"table": "*i32"}
    options = launch_options(padded)
    return facts(triton_kernels.split_kv_attention, capability, _SCRATCH | content, _CUT | shape | kind, options)


def merge(capability: int, dtype: str, *, sinks: bool = False) -> dict[str, int]:
    options = {"num_warps": 4, "num_stages": 2}
    limits = (
        {"KIND": "sliding_window", "WINDOW": 128, "HAS_SINKS": True}
        if sinks
        else {"KIND": "full", "WINDOW": 0, "HAS_SINKS": False}
    )
    return facts(
        triton_kernels.merge_splits,
        capability,
        _SCRATCH | {"output": f"*{dtype}", "sinks": f"*{dtype}"},
        _CUT | limits,
        options,
    )


# GPUs, types, and groups up to Falcon's 71. The window and the capped scores are Gemma 2's.
KERNELS: dict[str, Callable[[], dict[str, int]]] = {
    "sm_80 bf16 4": lambda: attend(80, "bf16", 4),
    "sm_90 bf16 4": lambda: attend(90, "bf16", 4),
    "sm_90 bf16 71": lambda: attend(90, "bf16", 71),
    "sm_80 bf16 71": lambda: attend(80, "bf16", 71),
    "sm_90 fp32 4": lambda: attend(90, "fp32", 4),
    "sm_90 bf16 window cap 4": lambda: attend(90, "bf16", 4, kind=WINDOW),
    "merge sm_80 bf16 sinks": lambda: merge(80, "bf16", sinks=True),
    "merge sm_90 bf16": lambda: merge(90, "bf16"),
}


if __name__ == "__main__":
    print(json.dumps({name: KERNELS[name]() for name in sys.argv[1:] or KERNELS}))
