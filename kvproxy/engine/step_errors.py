"""Tells failed steps from failed devices."""

import torch

from kvproxy.errors import Overloaded

_DEVICE_ERRORS = (
    "CUDA error",
    "CUDA driver error",
    "cuBLAS error",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "Triton Error [CUDA]",
)


class StepFailed(Exception):
    """A forward pass failed. The engine aborts its requests and continues."""


def is_device_error(error: BaseException) -> bool:
    """Whether the device failed, so that the process must restart. Out of memory requires no restart."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in _DEVICE_ERRORS)
    )


def error_for_client(error: BaseException) -> Overloaded:
    kind = "ran out of memory" if isinstance(error, (MemoryError, torch.OutOfMemoryError)) else "failed"
    return Overloaded(f"the engine {kind} on this request: see the server's log")


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
