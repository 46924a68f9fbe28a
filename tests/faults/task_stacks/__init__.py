"""Prints the stacks of the threads and asyncio tasks of a process."""

import contextlib
import os
import signal
from pathlib import Path

from tests.polling import until

TASK_STACKS = Path(__file__).parent
"""Folder for the PYTHONPATH of a process that `task_stacks` can ask."""
_SECONDS = 20.0
_LINES = 5
"""Lines of the log before the stacks."""


def task_stacks(process: int, log: Path) -> str:
    """Return the last lines of a process's log, and the stacks of its threads and tasks. `log` receives its standard error."""
    before = log.read_text()
    os.kill(process, signal.SIGUSR1)
    # The main thread may be stuck.
    with contextlib.suppress(AssertionError):
        until(lambda: "end of tasks" in log.read_text()[len(before) :], _SECONDS)
    return "\n".join([*before.splitlines()[-_LINES:], log.read_text()[len(before) :]])
