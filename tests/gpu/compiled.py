"""What the decode kernels need of a GPU, found by compiling them: `python -m tests.gpu.compiled`.

It needs Triton and no GPU. The shape is that of a 7B model: 32 heads over 8, 128 wide, blocks of 16.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvproxy.engine.attention import decode_kernel
from kvproxy.engine.attention.triton_decode import tile_of

_TYPES = {"bf16": (tl.bfloat16, 2), "fp16": (tl.float16, 2), "fp32": (tl.float32, 4)}
_ALIGNED = ("query_row", "query_head", "pool_block", "pool_slot", "pool_head")


def facts(kernel: Any, capability: int, pointers: dict[str, str], constants: dict[str, Any]) -> dict[str, int]:
    """Registers of a thread, bytes of its stack, bytes of shared memory of a program."""
    names = kernel.arg_names
    kinds = {"scale": "fp32"} | pointers | dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fn=kernel,
        signature={name: kinds.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (names.index(name),): [["tt.divisibility", 16]] for name in names if name in pointers or name in _ALIGNED
        },
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4, "num_stages": 2}
    )
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    (found,) = re.findall(r"REG:(\d+) STACK:(\d+)", usage)
    return {"registers": int(found[0]), "stack": int(found[1]), "shared": compiled.metadata.shared}


def both(capability: int, dtype: str) -> dict[str, dict[str, int]]:
    """Facts of both kernels for one data type."""
    product, size = _TYPES[dtype]
    cut = {"SPLIT": decode_kernel.SPLIT, "MOST": 64, "HEAD_DIM": 128, "PADDED_DIM": 128}
    scratch = {"partial": "*fp32", "logsums": "*fp32", "lengths": "*i64"}
    content = dict.fromkeys(("query", "keys", "values"), f"*{dtype}") | {"table": "*i32"}
    group = {"GROUP": 4, "PADDED_GROUP": 16, "BLOCK_SIZE": 16, "TILE": tile_of(128, size), "PRODUCT": product}
    attend, merge = decode_kernel.attend_stretch, decode_kernel.merge_stretches
    return {
        f"attend_stretch sm_{capability} {dtype}": facts(attend, capability, scratch | content, cut | group),
        f"merge_stretches sm_{capability} {dtype}": facts(merge, capability, scratch | {"output": f"*{dtype}"}, cut),
    }


if __name__ == "__main__":
    print(json.dumps(both(80, "bf16") | both(90, "bf16") | both(90, "fp32")))
