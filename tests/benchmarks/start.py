"""Time until a proxy answers, and the memory that it holds: in front of an upstream, with and without similar questions,
and with the embedded engine.

python -m tests.benchmarks.start [--against PATH] [--repeat 7]

Each start is a process of its own with an empty data folder. `--against` names another checkout; its starts are taken in
turn with ours. Finished graphs are there already, as at every start but the first; `first` is a start without them.
Memory is read after two requests, the second a rewording of the first: all that is resident, and the part of it that is
the process's own (anonymous).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port

OURS = Path(__file__).resolve().parents[2]
PROGRAM = """
try:
    from kvproxy.commands import main
except ImportError:
    from commands import main
main()
"""
QUESTIONS = ("What is a block?", "Can you tell me what a block is?")
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start.

    Attributes:
        seconds: until `/health` answered.
        core: of a core's time, until then.
        resident, anonymous: MiB after two requests.
    """

    seconds: float
    core: float
    resident: float
    anonymous: float


def start(checkout: Path, flags: list[str], model: str, cache: Path) -> Start:
    """Start a proxy, ask it twice, and end it."""
    port = free_port()
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-c", PROGRAM, "serve", "--port", str(port), "--data", data, *flags]
        environment = os.environ | {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(cache), "HF_HUB_OFFLINE": "1"}
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=data, env=environment, stdout=subprocess.DEVNULL)
        try:
            while not answers(port):
                if process.poll() is not None or time.perf_counter() - began > PATIENCE:
                    raise SystemExit(f"{checkout} did not start with {flags}")
                time.sleep(0.005)
            seconds, core = time.perf_counter() - began, computed(process.pid)
            for question in QUESTIONS:
                ask(port, model, question)
            return Start(seconds, core, *memory(process.pid))
        finally:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def ask(port: int, model: str, question: str) -> None:
    body = {"model": model, "temperature": 0, "max_tokens": 32, "messages": [{"role": "user", "content": question}]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def computed(pid: int) -> float:
    """Seconds of a core that a process took so far. A busy machine changes them less than it changes the clock's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> tuple[float, float]:
    """Resident and anonymous MiB of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return tuple(int(sizes[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    checkouts = {"this": OURS} | ({"other": options.against.resolve()} if options.against else {})
    with run_plain_upstream() as upstream, tempfile.TemporaryDirectory() as folder:
        behind = ["--upstream", upstream]
        kinds: dict[str, tuple[list[str], str]] = {
            "upstream, first": (behind, "plain"),
            "upstream": (behind, "plain"),
            "upstream, --no-semantic": ([*behind, "--no-semantic"], "plain"),
            "embedded demo": (["--num-blocks", "1024"], "demo"),
        }
        print(
            f"{'':26} {'':7} {'seconds':>20} {'of a core':>10} {'resident MiB':>14} {'anonymous MiB':>14}   ratios to the other"
        )
        for kind, (flags, model) in kinds.items():
            first = kind.endswith("first")
            found: dict[str, list[Start]] = {name: [] for name in checkouts}
            for number in range(options.repeat):
                for name, checkout in checkouts.items():
                    cache = Path(folder) / (f"{name}-{number}" if first else name)
                    if not first and not number:
                        start(checkout, flags, model, cache)  # Makes the graphs, and brings files into the page cache.
                    found[name].append(start(checkout, flags, model, cache))
            show(kind, found)


def show(kind: str, found: dict[str, list[Start]]) -> None:
    """A row for each checkout: medians, the fastest and the slowest start, and median ratios round by round."""
    for name, starts in found.items():
        seconds = [each.seconds for each in starts]
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"
        core, resident, anonymous = (
            statistics.median(getattr(each, what) for each in starts) for what in ("core", "resident", "anonymous")
        )
        ratios = ""
        if name == "this" and "other" in found:
            measures = ("seconds", "core", "resident", "anonymous")
            rounds = list(zip(starts, found["other"], strict=True))
            ratios = "  ".join(
                f"{statistics.median(getattr(one, what) / getattr(other, what) for one, other in rounds):.2f}"
                for what in measures
            )
        print(f"{kind:26} {name:7} {spread:>20} {core:10.2f} {resident:14.0f} {anonymous:14.0f}   {ratios}", flush=True)


if __name__ == "__main__":
    main()
