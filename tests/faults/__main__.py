"""Run harnesses in turn: `python -m tests.faults [NAME ...] [--rounds N] [--seed N]`."""

import argparse
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.faults import damage, disks, fleet, fuzz, kills, outage, overload, smuggling, soak
from tests.faults.harness import Finding, passed

HARNESSES = {
    "kills": (kills.run, 1000),
    "disks": (disks.run, 300),
    "damage": (damage.run, 3000),
    "outage": (outage.run, 60),
    "overload": (overload.run, 120),
    "fleet": (fleet.run, 50),
    "fuzz": (fuzz.run, 100_000),
    "smuggling": (smuggling.run, 20_000),
    "soak": (soak.run, 1_000_000),
}
"""Each harness with its default number of rounds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"harnesses; default: {', '.join(HARNESSES)}")
    parser.add_argument("--rounds", type=int, help="rounds of each harness; each has a default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random generators")
    options = parser.parse_args()
    if unknown := set(options.names) - set(HARNESSES):
        parser.error(f"unknown harnesses: {', '.join(sorted(unknown))}")
    findings: list[Finding] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for name in options.names or HARNESSES:
            run, default = HARNESSES[name]
            task = progress.add_task(name, total=options.rounds or default)
            findings += run(options.rounds or default, options.seed, lambda task=task: progress.advance(task))  # type: ignore[misc]
    table = Table("fault", "rounds", "what happened", "failures", "seconds")
    for each in findings:
        happened = ", ".join(f"{name} {count:,}" for name, count in each.counts.items())
        table.add_row(each.fault, f"{each.rounds:,}", happened, str(len(each.failures)), f"{each.seconds:.1f}")
    Console().print(table)
    sys.exit(0 if passed(findings) else 1)


if __name__ == "__main__":
    main()
