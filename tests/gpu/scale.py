"""Sizes of the checks (7B shapes on a GPU, tiny ones on a CPU), limits of the device, and measured times."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Shape:
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class Scale:
    shape: Shape
    longest: int
    context: int
    rows: tuple[int, ...]
    pool: int  # tokens that fit into 80 GB beside the weights
    suffixes: tuple[int, ...]
    chunk: int
    locked: int  # bytes of host memory for chunks
    vectors: int
    repeat: int
    judged: bool


FULL = Scale(
    Shape(32_000, 4096, 14_336, 32, 32, 8),
    longest=16_384,
    context=8192,
    rows=(1, 8, 64),
    pool=1 << 18,
    suffixes=(64, 256),
    chunk=256,
    locked=4 << 30,
    vectors=1_000_000,
    repeat=20,
    judged=True,
)
REHEARSAL = Scale(
    Shape(2048, 64, 96, 2, 4, 2),
    longest=256,
    context=96,
    rows=(1, 3),
    pool=288,
    suffixes=(5, 20),
    chunk=32,
    locked=1 << 28,
    vectors=5_000,
    repeat=2,
    judged=False,
)


def scale_of(device: torch.device) -> Scale:
    return FULL if device.type == "cuda" else REHEARSAL


_CALLS = 20
"""Calls in one graph: launching from Python takes longer than many a kernel runs."""


def seconds(work: Callable[[], object], repeat: int = 10, calls: int = _CALLS) -> float:
    if not torch.cuda.is_available():
        return launched(work, 1, warm=0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            work()
    return launched(graph.replay, repeat) / calls


def launched(work: Callable[[], object], repeat: int = 15, warm: int = 3) -> float:
    for _ in range(warm):
        work()
    times: list[float] = []
    for _ in range(repeat):
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@cache
def copy_bandwidth(device: torch.device) -> float:
    size = 1 << 24
    if device.type == "cuda":
        size = min(2 << 30, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * size / seconds(lambda: target.copy_(source), calls=3)


@cache
def matmul_rate(device: torch.device) -> float:
    side = 8192 if device.type == "cuda" else 64
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2.0 * float(side) ** 3 / seconds(lambda: left @ right, calls=3)
