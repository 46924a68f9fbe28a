"""Run every check and benchmark that requires a GPU, within 8 minutes.

python -m tests.gpu [--json FILE] [--require-all] [--only TEXT] [--limit SECONDS] [--rehearse]

Install kvproxy with its engine, torch with CUDA, triton, rich, jinja2, and faiss with GPU support. A check with a missing package
is not run; with --require-all, it counts as failed.
Exit codes: 0 all passed, 1 something failed or missed its goal, 3 there is no GPU.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.gpu.check import Check, Result, run_all

NO_GPU = 3


def main() -> int:
    arguments = _arguments()
    if arguments.rehearse:
        # Before triton is imported, here or in the processes that run the checks.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not arguments.rehearse and not torch.cuda.is_available():
        print("torch sees no CUDA device: nothing was checked (--rehearse runs the checks on the CPU)", file=sys.stderr)
        return NO_GPU
    device = "cpu" if arguments.rehearse else f"cuda:{torch.cuda.current_device()}"
    checks = _chosen(arguments)
    facts = _facts(device)
    results: list[Result] = []
    # Buffered by line: a run that is cut keeps its results.
    with Path(arguments.json or os.devnull).open("w", buffering=1) as file:
        print(json.dumps({"machine": facts}), file=file)
        for result in run_all(checks, device, arguments.limit, _announce):
            print(json.dumps(asdict(result)), file=file)
            results.append(result)
    _print(results, facts)
    return 1 if failed(results, require_all=arguments.require_all) else 0


def _chosen(arguments: argparse.Namespace) -> list[Check]:
    from tests.gpu import bandwidth, chats, engine, graphs, index, kernels, memory, steps

    parts = (kernels, engine, graphs, bandwidth, steps, memory, index, chats)
    checks = [check for part in parts for check in part.CHECKS if arguments.only in check.name]
    return [check for check in checks if check.rehearsed or not arguments.rehearse]


def failed(results: Sequence[Result], *, require_all: bool) -> list[str]:
    bad = ("failed", "not run") if require_all else ("failed",)
    return [result.name for result in results if result.status in bad]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write each result to this file as it comes, one JSON a line")
    parser.add_argument("--require-all", action="store_true", help="fail where a check cannot be run")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name contains this")
    parser.add_argument("--limit", type=float, default=460, help="seconds for everything")
    parser.add_argument(
        "--rehearse", action="store_true", help="try the checks themselves on the CPU: tiny sizes, no goals"
    )
    return parser.parse_args()


def _announce(name: str) -> None:
    print(f".. {name}", file=sys.stderr, flush=True)


def _facts(device: str) -> dict[str, str]:
    import torch

    on_gpu = device != "cpu"
    facts = {"device": torch.cuda.get_device_name(device) if on_gpu else "CPU", "torch": torch.__version__}
    if on_gpu:
        facts["CUDA"] = str(torch.version.cuda)
    for name in ("triton", "transformers"):
        try:
            facts[name] = __import__(name).__version__
        except ModuleNotFoundError:
            facts[name] = "not installed"
    return facts


def _print(results: Sequence[Result], facts: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=", ".join(f"{name} {value}" for name, value in facts.items()), show_lines=True)
    for column in ("check", "", "s", "found"):
        table.add_column(column, justify="right" if column == "s" else "left")
    colours = {"passed": "green", "failed": "red", "not run": "yellow"}
    for result in results:
        found = [f"{name}: {value}" for name, value in result.figures.items()]
        status = f"[{colours[result.status]}]{result.status}[/]"
        table.add_row(
            result.name,
            status,
            f"{result.seconds:.1f}",
            "\n".join([*found, *([result.reason] if result.reason else [])]),
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)


if __name__ == "__main__":
    sys.exit(main())
