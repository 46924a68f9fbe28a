"""The decode kernels compiled for GPUs, which needs none: they must fit the registers and the shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The smallest GPUs of these architectures give a program this many bytes of shared memory.
SHARED = 99 * 1024
REGISTERS = 65_536


# `python -m tests.gpu.compiled` compiles all kernels in half a minute.
NAMES = ("sm_90 roomy bf16 window cap 4", "merge sm_80 bf16 sinks")


def test_compiles_without_spilling(tmp_path: Path) -> None:
    # Not in this process, where the interpreter has taken the kernels' place.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compiled", *NAMES],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        check=True,
    )
    found = json.loads(done.stdout)
    assert len(found) == len(NAMES)
    for name, facts in found.items():
        assert facts["stack"] == 0, f"{name} spills registers"
        assert facts["shared"] <= SHARED, name
        assert facts["registers"] * facts["warps"] * 32 <= REGISTERS, f"{name} does not fit a processor"
        if name.endswith(" 4"):
            assert 3 * facts["registers"] * facts["warps"] * 32 <= REGISTERS, f"{name} leaves room for few programs"
        if "roomy" in name:
            assert facts["buffers"] >= 2, f"{name} cannot fill one buffer while it reads the other"
