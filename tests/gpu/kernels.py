"""The attention backends on a device, compared with attention computed token by token in float64."""

from functools import partial

import torch

from kvproxy.engine.attention import triton_decode, varlen_prefill
from kvproxy.engine.attention.interface import DecodeBackend, PrefillBackend, ScoreOptions
from kvproxy.engine.attention.sdpa_attention import SdpaDecode, SdpaPrefill
from kvproxy.engine.attention.triton_decode import TritonDecode
from kvproxy.engine.attention.varlen_prefill import VarlenPrefill
from tests.gpu.check import Check, Figures, Missed, NotHere
from tests.gpu.paged import TOLERANCE, Heads, decode_error, prefill_error

_HEADS = [Heads(8, 8, 32), Heads(8, 2, 64), Heads(4, 1, 80), Heads(6, 2, 96), Heads(32, 8, 128), Heads(16, 1, 256)]
_LENGTHS = [[1], [16, 17, 15], [127, 128, 129, 1000], [8191, 8193], [20_000, 5]]
_PASTS = [[(0, 1)], [(0, 300), (0, 17)], [(64, 1), (5, 200), (0, 33)], [(8000, 128), (0, 256), (1023, 1025)]]


def sdpa(device: torch.device) -> Figures:
    worst: Figures = {}
    for dtype in (torch.float32, torch.bfloat16):
        for role, found in (
            ("decode", _decodes(SdpaDecode(), dtype, device)),
            ("prefill", _prefills(SdpaPrefill(), dtype, device)),
        ):
            worst[f"{role} {_short(dtype)}"] = found["worst error"]
    return worst


def _decodes(backend: DecodeBackend, dtype: torch.dtype, device: torch.device) -> Figures:
    if isinstance(backend, TritonDecode) and (reason := triton_decode.unsupported_reason(device)):
        raise NotHere(reason)
    worst, count = 0.0, 0
    for heads in _HEADS:
        for number, lengths in enumerate(_LENGTHS):
            for block_size in (16, 5) if number < 2 and heads.head_dim < 80 else (16,):
                found = decode_error(backend, heads, lengths, block_size, dtype, device, shared=2)
                count += 1
                worst = _judge(worst, found, dtype, f"{heads}, lengths {lengths}, blocks of {block_size}")
    return {"cases": str(count), "worst error": f"{worst:.1e}", "allowed": f"{TOLERANCE[dtype]:.0e}"}


def _prefills(backend: PrefillBackend, dtype: torch.dtype, device: torch.device) -> Figures:
    worst, count = 0.0, 0
    for heads in _HEADS:
        if isinstance(backend, VarlenPrefill) and (
            reason := varlen_prefill.unsupported_reason(device, dtype, heads.head_dim)
        ):
            raise NotHere(reason)
        for shape in _PASTS if heads.head_dim <= 128 else _PASTS[:3]:
            for scaling in (None, 0.2):
                found = prefill_error(backend, heads, shape, 16, dtype, device, scores=ScoreOptions(scaling))
                count += 1
                worst = _judge(worst, found, dtype, f"{heads}, past and new tokens {shape}, scaling {scaling}")
    return {"cases": str(count), "worst error": f"{worst:.1e}", "allowed": f"{TOLERANCE[dtype]:.0e}"}


def _judge(worst: float, found: float, dtype: torch.dtype, case: str) -> float:
    # Written so that NaN does not pass.
    if not found <= TOLERANCE[dtype]:
        raise Missed(f"error {found:.1e}: {case}", {"allowed": f"{TOLERANCE[dtype]:.0e}"})
    return max(worst, found)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


CHECKS = (
    Check("decode kernels, float32", 90, partial(_decodes, TritonDecode(), torch.float32)),
    Check("decode kernels, float16", 90, partial(_decodes, TritonDecode(), torch.float16)),
    Check("decode kernels, bfloat16", 90, partial(_decodes, TritonDecode(), torch.bfloat16)),
    Check("FlashAttention prefill, bfloat16", 40, partial(_prefills, VarlenPrefill(), torch.bfloat16)),
    Check("FlashAttention prefill, float16", 40, partial(_prefills, VarlenPrefill(), torch.float16)),
    Check("SDPA fallback", 60, sdpa),
)
