"""What can fail on the engine's thread: one request, one step, or the device for good."""

import torch

from kvproxy.errors import Overloaded

_SIGNS = ("CUDA error", "CUDA driver error", "cuBLAS error", "CUBLAS_STATUS", "CUDNN_STATUS", "Triton Error [CUDA]")


class StepFailed(Exception):
    """A forward pass failed. Its requests are dropped and told; the engine goes on with the others."""


def is_device_error(error: BaseException) -> bool:
    """Whether the device itself failed. CUDA then answers every later call with the same error: only a restart helps.

    Memory that ran out is no such error: the next step may fit.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
    )


def request_failed(error: BaseException) -> Overloaded:
    """What a client is told whose request failed inside the engine; the cause is for the log only."""
    kind = "ran out of memory" if isinstance(error, (MemoryError, torch.OutOfMemoryError)) else "failed"
    return Overloaded(f"the engine {kind} on this request: see the server's log")
