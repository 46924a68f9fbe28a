"""The attention backends on a device, compared with attention computed token by token in float64."""

import torch

from kvproxy.engine.attention import triton_decode, varlen
from kvproxy.engine.attention.interface import DEFAULT_SCORES, DecodeBackend, PrefillBackend, ScoreOptions
from kvproxy.engine.attention.sdpa import SdpaDecode, SdpaPrefill
from kvproxy.engine.attention.triton_decode import TritonDecode
from kvproxy.engine.attention.varlen import VarlenPrefill
from kvproxy.engine.scheduler.output import TokenSpan
from kvproxy.engine.worker.input_batch import decode_block_table
from tests.gpu.check import Check, Figures, Missed, NotHere
from tests.gpu.paged import TOLERANCE, Heads, error, expected_rows, fill, poisoned_pool, random_tables

_HEADS = [Heads(8, 8, 32), Heads(8, 2, 64), Heads(4, 1, 80), Heads(6, 2, 96), Heads(32, 8, 128), Heads(16, 1, 256)]
_LENGTHS = [[1], [16, 17, 15], [127, 128, 129, 1000], [8191, 8193], [20_000, 5]]
_PASTS = [[(0, 1)], [(0, 300), (0, 17)], [(64, 1), (5, 200), (0, 33)], [(8000, 128), (0, 256), (1023, 1025)]]
_SMALL = 4
"""Cases that the interpreter takes; it is thousands of times slower."""


def triton_float32(device: torch.device) -> Figures:
    return _decodes(TritonDecode(), torch.float32, device)


def triton_float16(device: torch.device) -> Figures:
    return _decodes(TritonDecode(), torch.float16, device)


def triton_bfloat16(device: torch.device) -> Figures:
    return _decodes(TritonDecode(), torch.bfloat16, device)


def varlen_bfloat16(device: torch.device) -> Figures:
    return _prefills(VarlenPrefill(), torch.bfloat16, device)


def varlen_float16(device: torch.device) -> Figures:
    return _prefills(VarlenPrefill(), torch.float16, device)


def sdpa(device: torch.device) -> Figures:
    """The fallback, in both types and both roles."""
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
    for heads in _HEADS if device.type == "cuda" else _HEADS[:_SMALL]:
        for number, lengths in enumerate(_LENGTHS if device.type == "cuda" else _LENGTHS[:2]):
            for block_size in (16, 5) if number < 2 and heads.head_dim < 80 else (16,):
                found = _decode_error(backend, heads, lengths, block_size, dtype, device)
                count += 1
                worst = _judge(worst, found, dtype, f"{heads}, lengths {lengths}, blocks of {block_size}")
    return {"cases": str(count), "worst error": f"{worst:.1e}", "allowed": f"{TOLERANCE[dtype]:.0e}"}


def _decode_error(
    backend: DecodeBackend, heads: Heads, lengths: list[int], block_size: int, dtype: torch.dtype, device: torch.device
) -> float:
    blocks = sum(-(-length // block_size) for length in lengths) + 2
    tables = random_tables(lengths, block_size, blocks, shared=2)
    pool = poisoned_pool(heads, blocks, block_size, dtype, device)
    fill(pool, tables, lengths)
    if not backend.supports_capture:
        pool.data.nan_to_num_()
    query = torch.randn(len(lengths), heads.heads, heads.head_dim, device=device).to(dtype)
    spans = [TokenSpan([0], length - 1, [table]) for table, length in zip(tables, lengths, strict=True)]
    ends = torch.tensor(lengths, device=device)
    attend = backend.prepare(decode_block_table(spans, block_size, device), ends, pool)
    output = attend(query, pool.layer(0), pool.layer(0), DEFAULT_SCORES)
    return error(output, expected_rows(query, pool, spans))


def _prefills(backend: PrefillBackend, dtype: torch.dtype, device: torch.device) -> Figures:
    worst, count = 0.0, 0
    for heads in _HEADS:
        if isinstance(backend, VarlenPrefill) and (reason := varlen.unsupported_reason(device, dtype, heads.head_dim)):
            raise NotHere(reason)
        for shape in _PASTS if heads.head_dim <= 128 else _PASTS[:3]:
            for scaling in (None, 0.2):
                found = _prefill_error(backend, heads, shape, dtype, device, scaling)
                count += 1
                worst = _judge(worst, found, dtype, f"{heads}, past and new tokens {shape}, scaling {scaling}")
    return {"cases": str(count), "worst error": f"{worst:.1e}", "allowed": f"{TOLERANCE[dtype]:.0e}"}


def _prefill_error(
    backend: PrefillBackend,
    heads: Heads,
    shape: list[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    scaling: float | None,
) -> float:
    lengths = [past + count for past, count in shape]
    blocks = sum(-(-length // 16) for length in lengths) + 2
    tables = random_tables(lengths, 16, blocks)
    pool = poisoned_pool(heads, blocks, 16, dtype, device)
    fill(pool, tables, lengths)
    spans = [TokenSpan([0] * count, past, [table]) for (past, count), table in zip(shape, tables, strict=True)]
    rows = sum(count for _, count in shape)
    query = torch.randn(rows, heads.heads, heads.head_dim, device=device).to(dtype)
    slots = torch.tensor([slot for span in spans for slot in span.slot_mapping(16)], device=device)
    key, value = (part.flatten(0, 1)[slots] for part in pool.layer(0))
    output = backend.prepare(spans, pool)(query, (key, value), pool.layer(0), ScoreOptions(scaling))
    return error(output, expected_rows(query, pool, spans, ScoreOptions(scaling)))


def _judge(worst: float, found: float, dtype: torch.dtype, case: str) -> float:
    # Written so that NaN does not pass.
    if not found <= TOLERANCE[dtype]:
        raise Missed(f"error {found:.1e}: {case}", {"allowed": f"{TOLERANCE[dtype]:.0e}"})
    return max(worst, found)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


CHECKS = (
    Check("decode kernels, float32", 90, triton_float32, interpreted=True),
    Check("decode kernels, float16", 90, triton_float16, interpreted=True),
    Check("decode kernels, bfloat16", 90, triton_bfloat16, interpreted=True),
    Check("FlashAttention prefill, bfloat16", 40, varlen_bfloat16),
    Check("FlashAttention prefill, float16", 40, varlen_float16),
    Check("SDPA fallback", 60, sdpa),
)
