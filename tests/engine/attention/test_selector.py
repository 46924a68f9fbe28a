"""Which backend is used where, and what is said where one cannot be."""

import pytest
import torch

from kvproxy.engine.attention import triton_kernels
from kvproxy.engine.attention.selector import select_backends
from kvproxy.errors import SettingsError

CPU = torch.device("cpu")


def test_a_cpu_uses_sdpa_unless_told_otherwise() -> None:
    for name in ("auto", "sdpa"):
        backends = select_backends(CPU, torch.float32, 64, prefill=name, decode=name)
        assert (backends.prefill.name, backends.decode.name) == ("sdpa", "sdpa")
    # The interpreter is on in these tests.
    assert select_backends(CPU, torch.float32, 64, decode="triton").decode.name == "triton"


def test_flash_attention_on_a_cpu_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"prefill_attention = varlen cannot run on cpu.*use auto or sdpa"):
        select_backends(CPU, torch.bfloat16, 64, prefill="varlen")


def test_triton_on_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # As it is where the interpreter is off: the kernels are none of its functions.
    monkeypatch.setattr(triton_kernels, "split_kv_attention", object())
    with pytest.raises(SettingsError, match="decode_attention = triton cannot run on cpu: it needs a CUDA device"):
        select_backends(CPU, torch.float32, 64, decode="triton")
    assert select_backends(CPU, torch.float32, 64).decode.name == "sdpa"
