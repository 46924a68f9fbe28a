"""Processor instructions per request, which other work on the machine does not change.

python -m tests.benchmarks.instructions [--checkouts FOLDER ...] [--requests 320]

Each proxy runs in Valgrind, receives its requests without sockets, and forwards them to an nginx that responds at once. The
journal writes after the requests, so that its instructions are a column of their own. `floor` is a server of the same packages
(uvicorn, httptools, aiohttp) that answers with a constant, or forwards each request and returns the response. Instructions of
the kernel are not counted. Requires gcc, and Valgrind with its headers.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.gateways import constant_upstream
from tests.benchmarks.load import Questions
from tests.benchmarks.options import read_options

_ROOT = Path(__file__).resolve().parents[2]
_FLOOR = "floor"
_SWITCHES = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop(void) { CALLGRIND_STOP_INSTRUMENTATION; CALLGRIND_DUMP_STATS; }
"""
_KINDS: dict[str, Questions] = {"exact hit": "same", "new question, --no-semantic": "new"}


def count(checkout: str, questions: Questions, requests: int, upstream: str) -> list[int]:
    """Return the instructions per request: of the event loop and the store, and of the journal."""
    arguments = ("tests.benchmarks.in_process_requests", checkout, questions, str(requests), upstream)
    return [total // requests for total in count_in_valgrind(*arguments)]


def count_in_valgrind(module: str, *arguments: str, text: str = "") -> list[int]:
    """Run a module, and return the instructions of each section between its calls of `start` and `stop`.

    Its last argument is the library with these functions. It reads `text` from its standard input.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "switches.c").write_text(_SWITCHES)
        library = folder / "switches.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "switches.c"], check=True)
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
        command = [*valgrind, sys.executable, "-m", module, *arguments, str(library)]
        environment = os.environ | {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
        subprocess.run(command, check=True, env=environment, cwd=_ROOT, capture_output=True, input=text, text=True)
        return [_total(path) for path in sorted(folder.glob("counts.[0-9]"))]


def _total(counts: Path) -> int:
    return max(int(line.split()[1]) for line in counts.read_text().splitlines() if line.startswith("totals:"))


def main() -> None:
    options = read_options(__doc__, checkouts=[_ROOT], requests=320)
    checkouts = [*dict.fromkeys([_ROOT, *(path.resolve() for path in options.checkouts)])]
    print("| request | version | event loop and store | journal | sum | / floor |\n|---|---|---|---|---|---|")
    with constant_upstream() as (upstream, _):
        for measure, questions in _KINDS.items():
            floor = sum(count(_FLOOR, questions, options.requests, upstream))
            print(f"| {measure} | {_FLOOR} | {floor:,} | | {floor:,} | 1 |", flush=True)
            for checkout in checkouts:
                parts = count(str(checkout), questions, options.requests, upstream)
                cells = " | ".join(f"{part:,}" for part in [*parts, sum(parts)])
                print(f"| {measure} | {checkout.name} | {cells} | {sum(parts) / floor:.1f} |", flush=True)


if __name__ == "__main__":
    main()
