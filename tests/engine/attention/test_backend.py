"""Which backend is used where, and what is said where one cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvproxy.engine.attention.backend import choose
from kvproxy.errors import SettingsError

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")


def test_a_cpu_uses_sdpa_unless_told_otherwise() -> None:
    for name in ("auto", "sdpa"):
        backends = choose(CPU, torch.float32, 64, prefill=name, decode=name)
        assert (backends.prefill.name, backends.decode.name) == ("sdpa", "sdpa")
    # The interpreter is on in these tests.
    assert choose(CPU, torch.float32, 64, decode="triton").decode.name == "triton"


def test_flash_attention_on_a_cpu_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"prefill_attention = varlen cannot run on cpu.*use auto or sdpa"):
        choose(CPU, torch.bfloat16, 64, prefill="varlen")


def test_triton_on_a_cpu_is_refused() -> None:
    call = "import torch; from kvproxy.engine.attention.backend import choose"
    call += "; choose(torch.device('cpu'), torch.float32, 64, decode='triton')"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 1
    assert "decode_attention = triton cannot run on cpu: it needs a CUDA device" in done.stderr.splitlines()[-1]
