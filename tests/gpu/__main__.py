"""Every check and every benchmark that needs a GPU, in one call of at most 8 minutes.

python -m tests.gpu [--json FILE] [--only TEXT] [--limit SECONDS] [--interpret]

It needs torch with CUDA, triton and rich; the checks of the engine also transformers and what the engine imports
(pydantic-settings, platformdirs, xxhash). A check whose package is missing says so and is not run.
Exit codes: 0 all passed, 1 something failed, 3 there is no GPU.
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
    """Run what was asked for and print the table."""
    arguments = _arguments()
    if arguments.interpret:
        # Before triton is imported, here or in the processes that run the checks.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not arguments.interpret and not torch.cuda.is_available():
        print(
            "torch sees no CUDA device: nothing was checked (--interpret tries the kernels on the CPU)", file=sys.stderr
        )
        return NO_GPU
    from tests.gpu import benchmarks, engine, kernels

    checks: list[Check] = [
        check
        for check in (*kernels.CHECKS, *engine.CHECKS, *benchmarks.CHECKS)
        if (check.interpreted or not arguments.interpret) and arguments.only in check.name
    ]
    device = "cpu" if arguments.interpret else f"cuda:{torch.cuda.current_device()}"
    results = list(run_all(checks, device, arguments.limit, _announce))
    facts = _facts(device)
    _print(results, facts)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": facts, "results": [asdict(each) for each in results]}, indent=1)
        )
    return 1 if any(result.status == "failed" for result in results) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose name contains this")
    parser.add_argument("--limit", type=float, default=460, help="seconds for everything")
    parser.add_argument(
        "--interpret", action="store_true", help="try the kernels under Triton's interpreter, on the CPU"
    )
    return parser.parse_args()


def _announce(name: str) -> None:
    print(f".. {name}", file=sys.stderr, flush=True)


def _facts(device: str) -> dict[str, str]:
    import torch

    facts = {"device": torch.cuda.get_device_name(device) if device != "cpu" else "CPU", "torch": torch.__version__}
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
