import torch

from kvproxy.errors import Overloaded

FAILURE_THRESHOLD = 3
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
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class EngineHealth:
    """The engine's failures, which any thread may read.

    `fatal_error` is permanent. After `FAILURE_THRESHOLD` failed steps in a row, `failure` is set until a step succeeds.
    """

    def __init__(self) -> None:
        self.fatal_error: str | None = None
        self._num_failed_steps = 0
        self._last_error = ""

    @property
    def failure(self) -> str | None:
        if self.fatal_error is not None:
            return self.fatal_error
        if self._num_failed_steps >= FAILURE_THRESHOLD:
            return f"the last {self._num_failed_steps} steps of the engine failed ({self._last_error}): see the server's log"
        return None

    def record_success(self) -> None:
        self._num_failed_steps = 0

    def record_failure(self, error: BaseException) -> None:
        self._num_failed_steps += 1
        self._last_error = first_line(error)

    def set_fatal(self, reason: str) -> None:
        if self.fatal_error is None:
            self.fatal_error = reason
