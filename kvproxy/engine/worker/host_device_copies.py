"""Copies between host and device that do not block the host."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

HostNumbers = Sequence[float] | Sequence[Sequence[int]] | np.ndarray


def to_host_tensor(values: HostNumbers, device: torch.device, dtype: type = np.int64) -> torch.Tensor:
    # numpy converts nested lists about 20 times faster than torch.
    host = torch.from_numpy(np.asarray(values, dtype=dtype))
    return host.pin_memory() if device.type == "cuda" else host


def upload(values: HostNumbers, device: torch.device, dtype: type = np.int64) -> torch.Tensor:
    return to_host_tensor(values, device, dtype).to(device, non_blocking=True)


class AsyncDownloads:
    """Device-to-host copies on their own CUDA stream; synchronous on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, source: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """Copy `source`, which must not change any more, to pinned memory.

        The returned function blocks until `out` is filled.
        """
        if self._stream is None:
            out.copy_(source)
            return lambda: None
        self._stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(self._stream):
            out.copy_(source, non_blocking=True)
            source.record_stream(self._stream)
            done = torch.cuda.Event()
            done.record(self._stream)
        return done.synchronize


class AsyncUploads:
    """Host-to-device copies; source buffers stay alive until they are read."""

    def __init__(self) -> None:
        self._in_flight: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()

    def start(self, source: torch.Tensor, device: torch.device) -> torch.Tensor:
        if device.type != "cuda":
            return source.to(device)
        while self._in_flight and self._in_flight[0][0].query():
            self._in_flight.popleft()
        copy = source.to(device, non_blocking=True)
        read = torch.cuda.Event()
        read.record(torch.cuda.current_stream(device))
        # torch keeps only pinned memory that it allocated; the source may be a view of a foreign buffer.
        self._in_flight.append((read, source))
        return copy
