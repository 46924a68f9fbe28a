"""The checks, each of which runs in a process of its own, so that a crash or a hang affects no other check."""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

Figures = dict[str, str]
Status = Literal["passed", "failed", "not run"]


class NotHere(Exception):
    pass


class Missed(Exception):
    def __init__(self, reason: str, figures: Figures) -> None:
        super().__init__(reason, figures)
        self.reason = reason
        self.figures = figures


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    seconds: float  # after which it counts as hung
    run: Callable[[Any], Figures]  # returns figures; raises Missed, NotHere, or any other error
    rehearsed: bool = False  # whether it also runs on a CPU, with tiny sizes and no goals


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    status: Status
    seconds: float
    figures: Figures = field(default_factory=dict)
    reason: str = ""


def run_all(checks: Sequence[Check], device: str, limit: float, begin: Callable[[str], None]) -> Iterator[Result]:
    # Its server imports torch once, and does nothing with it: each process begins from there.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    end = time.monotonic() + limit
    left = list(checks)
    while left:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(left, device, theirs), daemon=True)
        process.start()
        theirs.close()
        healthy = True
        while healthy and left:
            check = left.pop(0)
            if end - time.monotonic() < 1:
                yield Result(check.name, "failed", 0.0, reason="not begun: the time for all checks was over")
                continue
            begin(check.name)
            result = _receive(check, process, ours, min(check.seconds, end - time.monotonic()))
            healthy = result.status != "failed"
            yield result
        process.kill()
        process.join()


def _receive(check: Check, process: Any, pipe: Connection, seconds: float) -> Result:
    began = time.monotonic()
    try:
        if pipe.poll(seconds):
            found: Result = pipe.recv()
            return found
        reason = f"not done after {seconds:.0f} s"
    except (EOFError, ConnectionError):
        process.join(5)
        reason = f"the process ended with code {process.exitcode}"
    return Result(check.name, "failed", time.monotonic() - began, reason=reason)


def _work(checks: Sequence[Check], device: str, pipe: Connection) -> None:
    import torch

    torch.set_grad_enabled(False)
    for check in checks:
        result = run_one(check, torch.device(device))
        pipe.send(result)
        if result.status == "failed":
            break


def run_one(check: Check, device: Any) -> Result:
    began = time.monotonic()
    status: Status = "passed"
    figures: Figures = {}
    reason = ""
    try:
        figures = check.run(device)
    except Missed as missed:
        status, figures, reason = "failed", missed.figures, missed.reason
    except (NotHere, ModuleNotFoundError) as error:
        status, reason = "not run", str(error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        status, reason = "failed", f"{type(error).__name__} in {where.name}: {str(error).strip().splitlines()[0:1]}"
    return Result(check.name, status, time.monotonic() - began, figures, reason)
