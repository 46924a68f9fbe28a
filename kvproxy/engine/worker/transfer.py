"""Copies between host and device that do not make the host wait."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

HostNumbers = Sequence[float] | Sequence[Sequence[int]] | np.ndarray


def to_host_tensor(values: HostNumbers, device: torch.device, dtype: type = np.int64) -> torch.Tensor:
    """Numbers as a host tensor, in page-locked memory where the device copies from there without the host."""
    # By way of numpy, which reads nested lists some 20 times faster than torch does.
    host = torch.from_numpy(np.asarray(values, dtype=dtype))
    return host.pin_memory() if device.type == "cuda" else host


def upload(values: HostNumbers, device: torch.device, dtype: type = np.int64) -> torch.Tensor:
    """Numbers as a tensor on a device."""
    return to_host_tensor(values, device, dtype).to(device, non_blocking=True)


def stack_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Matrices one below the other; without a copy where they lie so in one piece of memory, as the rows of a step do."""
    first, place = parts[0], parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != place or not part.is_contiguous() or not _share_memory(part, first):
            return torch.cat(list(parts))
        place += part.nbytes
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class Downloads:
    """Copies to the host that run beside the steps of a CUDA device, on a stream of their own.

    Args:
        device: where the tensors are; on a CPU they are copied at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, source: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """Copy a tensor that is not written to any more; what is returned waits until `out`, page-locked, is filled."""
        if self._stream is None:
            out.copy_(source)
            return _nothing
        self._stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(self._stream):
            out.copy_(source, non_blocking=True)
            source.record_stream(self._stream)
            done = torch.cuda.Event()
            done.record(self._stream)
        return done.synchronize


class Uploads:
    """Copies of host buffers to a device, which keep the buffers alive until they are read."""

    def __init__(self) -> None:
        self._under_way: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()

    def start(self, source: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The tensor on the device, for the current stream; on a CPU, the tensor itself."""
        if device.type != "cuda":
            return source.to(device)
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        copy = source.to(device, non_blocking=True)
        read = torch.cuda.Event()
        read.record(torch.cuda.current_stream(device))
        # Only torch's own page-locked tensors are kept by torch; these may be laid over somebody else's buffer.
        self._under_way.append((read, source))
        return copy


def _nothing() -> None:
    """Nothing to wait for."""
