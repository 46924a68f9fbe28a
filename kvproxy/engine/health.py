"""Whether an engine still answers, read by other threads."""

STEPS = 3
"""Failed steps in a row after which the engine counts as failing."""


class Health:
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
