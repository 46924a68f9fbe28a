"""SIGUSR1 prints the stacks of all threads and asyncio tasks to standard error. Python imports this module at its start."""

import faulthandler
import signal
import sys
from collections.abc import Iterator
from typing import Any


def _frames(waiting: Any) -> Iterator[str]:
    """Yield the places of a coroutine and of what it awaits, the outermost first."""
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        yield f"  {waiting!r}" if frame is None else f"  {frame.f_code.co_filename}:{frame.f_lineno}"
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)


def _print_tasks(*_: object) -> None:
    import asyncio

    for task in asyncio.all_tasks():
        print(task.get_name(), *_frames(task.get_coro()), sep="\n", file=sys.stderr)
    print("end of tasks", file=sys.stderr, flush=True)


signal.signal(signal.SIGUSR1, _print_tasks)
# Prints the threads at once, also if the main thread is stuck.
faulthandler.register(signal.SIGUSR1, chain=True)
