"""Whether an engine still answers, read by other threads."""

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


STEPS = 3
"""Failed steps in a row after which the engine counts as failing."""


class EngineHealth:
    """What the engine's thread notes of its steps, and what others read of it.

    A device error is for good: CUDA answers every later call with it. Failed steps are forgotten with the next good one.
    """

    def __init__(self) -> None:
        self.dead: str | None = None
        """Why no request will ever be answered again, None while there is hope."""
        self._failed_steps = 0
        self._last = ""

    @property
    def failure(self) -> str | None:
        """What is wrong, in a sentence for people; None where nothing is."""
        if self.dead is not None:
            return self.dead
        if self._failed_steps >= STEPS:
            return f"the last {self._failed_steps} steps of the engine failed ({self._last}): see the server's log"
        return None

    def step_done(self) -> None:
        """A step went well."""
        self._failed_steps = 0

    def step_failed(self, error: BaseException) -> None:
        """A step failed; the next one may go well."""
        self._failed_steps += 1
        self._last = describe(error)

    def died(self, why: str) -> None:
        """There will be no more steps. The first reason is kept."""
        if self.dead is None:
            self.dead = why


def describe(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
