"""Start, memory, and CPU time per request of kvproxy, of this folder and of other checkouts.

python -m tests.benchmarks.before_after [--checkouts FOLDER ...] [--starts 5] [--rounds 9] [--seconds 1] [--connections 16]

The proxies have an empty data folder, and stand in front of an nginx that responds at once. wrk sends exact hits, new
questions, and new questions without semantic matching, to each proxy in turn. All checkouts use the packages of this
environment. Other work on the machine raises CPU time, so only the ratios to this folder within one run are exact.
"""

import compileall
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.benchmarks.gateways import constant_upstream
from tests.benchmarks.load import Questions, wrk
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import cpu_seconds, resident_mib
from tests.benchmarks.timing import interleave, median_ratio
from tests.ports import free_port
from tests.processes import Serving, serve

_SCRIPT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from kvproxy.commands import main; main()"
_IDLE_SECONDS = 2.0
"""Time after the port opened, in which a proxy loads its models."""
_LOADS: dict[str, tuple[Questions, tuple[str, ...]]] = {
    "exact hit, ms": ("same", ("--no-semantic",)),
    "new question, --no-semantic, ms": ("new", ("--no-semantic",)),
    "new question, ms": ("new", ()),
}


@contextlib.contextmanager
def proxy(checkout: Path, *flags: str, **variables: str) -> Iterator[Serving]:
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-c", _SCRIPT, str(checkout), "serve", "--port", str(port), "--data", f"{name}/data"]
        environment = os.environ | {"HF_HUB_OFFLINE": "1"} | variables
        with serve([*command, *flags], port, Path(name) / "log", env=environment, cwd=Path(name)) as server:
            yield server


def start(checkout: Path, upstream: str, memory: list[float]) -> float:
    """Return the CPU seconds of a start, and append the MiB of resident memory after it to `memory`."""
    with proxy(checkout, "--upstream", upstream) as server:
        time.sleep(_IDLE_SECONDS)
        memory.append(resident_mib(server.process.pid))
        return cpu_seconds(server.process.pid)


def cpu_per_request(server: Serving, connections: int, seconds: float, questions: Questions) -> float:
    """Return milliseconds of CPU time per request."""
    before = cpu_seconds(server.process.pid)
    count = wrk(server.url, connections, seconds, questions, time.time_ns() % 10**9).count
    return (cpu_seconds(server.process.pid) - before) / count * 1e3


def show(measure: str, found: dict[str, list[float]], digits: int) -> None:
    base, *others = found.values()
    cells = " | ".join(f"{min(values):.{digits}f} to {max(values):.{digits}f}" for values in found.values())
    print(f"| {measure} | {cells} | {', '.join(f'{median_ratio(each, base):.2f}' for each in others)} |", flush=True)


def main() -> None:
    here = Path(__file__).resolve().parents[2]
    options = read_options(__doc__, checkouts=[here], starts=5, rounds=9, seconds=1.0, connections=16)
    checkouts = {checkout.resolve().name: checkout.resolve() for checkout in [here, *options.checkouts]}
    for checkout in checkouts.values():
        # Without bytecode, each start compiles everything.
        compileall.compile_dir(checkout / "kvproxy", quiet=2)
    print(f"| measure | {' | '.join(checkouts)} | ratios to {here.name} |\n|---|{'---|' * (len(checkouts) + 1)}")
    with constant_upstream() as (upstream, _):
        memory: dict[str, list[float]] = {name: [] for name in checkouts}
        starts = {name: partial(start, checkout, upstream, memory[name]) for name, checkout in checkouts.items()}
        show("start, s", interleave(starts, options.starts), 2)
        show("memory after the start, MiB", memory, 0)
        for measure, (questions, flags) in _LOADS.items():
            with contextlib.ExitStack() as stack:
                works: dict[str, Callable[[], float]] = {}
                for name, checkout in checkouts.items():
                    server = stack.enter_context(proxy(checkout, "--upstream", upstream, *flags))
                    works[name] = partial(cpu_per_request, server, options.connections, options.seconds, questions)
                    works[name]()
                show(measure, interleave(works, options.rounds), 3)


if __name__ == "__main__":
    main()
