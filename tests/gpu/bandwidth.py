"""The device's limits, and how near the decode kernels come."""

from functools import cache
from typing import Any

import torch

from tests.gpu.check import Check, Figures, Missed
from tests.gpu.scale import copy_bandwidth, matmul_rate, scale_of, seconds

GOAL = 0.6
"""Least share of a copy's bandwidth."""


def limits(device: torch.device) -> Figures:
    return {
        "copy": f"{copy_bandwidth(device) / 1e9:.0f} GB/s read and written",
        "bfloat16 matmul": f"{matmul_rate(device) / 1e12:.2f} TFLOP/s",
    }


def decode_bandwidth(device: torch.device) -> Figures:
    from kvproxy.engine.attention.triton_decode import TritonDecode

    scale, floor = scale_of(device), copy_bandwidth(device)
    figures: Figures = {}
    missed = []
    for rows, context, judged in _cases(scale.rows, scale.context):
        share = _decode_rate(TritonDecode(), rows, context, device) / floor
        figures[f"{rows} x {context}"] = f"{share * floor / 1e9:.1f} GB/s, {share:.2f} of a copy"
        if judged and scale.judged and share < GOAL:
            missed.append(f"{rows} x {context}: {share:.2f} of a copy, goal {GOAL}")
    if missed:
        raise Missed("; ".join(missed), figures)
    return figures


def _cases(rows: tuple[int, ...], context: int) -> list[tuple[int, int, bool]]:
    return [(1, 4 * context, False), *((count, context, count > 1) for count in rows), (rows[-1], context // 4, False)]


def _decode_rate(backend: Any, rows: int, context: int, device: torch.device) -> float:
    shape = scale_of(device).shape
    width = -(-context // 16)
    pool = _pool(rows * width + 1, device)
    table = (torch.randperm(rows * width, device=device) + 1).view(rows, -1).int()
    query = torch.randn(rows, shape.heads, shape.head_dim, device=device, dtype=torch.bfloat16)
    attend = backend.prepare(table, torch.full((rows,), context, device=device), pool)
    from kvproxy.engine.attention.interface import ScoreOptions

    layer = pool.layers[0]
    took = seconds(lambda: attend(query, layer, layer, ScoreOptions()), repeat=scale_of(device).repeat // 2)
    return rows * context * 2 * shape.kv_heads * shape.head_dim * 2 / took


@cache
def _pool(blocks: int, device: torch.device) -> Any:
    from kvproxy.engine.worker.kv_pool import KVPool, KVShape

    shape = scale_of(device).shape
    made = KVPool(KVShape(1, shape.kv_heads, shape.head_dim), blocks, 16, torch.bfloat16, device)
    made.data.normal_()
    return made


CHECKS = (
    Check("limits of the device", 40, limits, rehearsed=True),
    Check("decode kernels against memory bandwidth", 60, decode_bandwidth, rehearsed=True),
)
