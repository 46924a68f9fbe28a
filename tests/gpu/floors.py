"""What a device can do at most, measured in the same run, and how long things take on it."""

import statistics
from collections.abc import Callable
from functools import cache

import torch


def seconds(work: Callable[[], object], repeat: int = 15, warm: int = 3) -> float:
    """Median time of work on the device, by its own clock."""
    for _ in range(warm):
        work()
    times: list[float] = []
    for _ in range(repeat):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(times)


@cache
def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second of a large copy, read and written."""
    size = min(2 << 30, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * size / seconds(lambda: target.copy_(source))


@cache
def matmul_rate(device: torch.device) -> float:
    """Operations a second of a large bfloat16 product of random matrices."""
    side = 8192
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2.0 * float(side) ** 3 / seconds(lambda: left @ right)
