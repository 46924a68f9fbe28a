"""What every harness has in common: rounds, what was found, progress while it runs and a table at its end."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

Advance = Callable[[], None]


@dataclass
class Finding:
    """What came of one kind of fault.

    Attributes:
        fault: what was done.
        rounds: how often.
        counts: what happened, by name; the table shows them in their order.
        failures: what should not have happened, a sentence each; none is a pass.
        seconds: that it took.
    """

    fault: str
    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Harness:
    """One harness.

    Attributes:
        name: of its module.
        rounds: that `make faults` runs.
        run: runs so many rounds with a seed; calls `Advance` after each.
    """

    name: str
    rounds: int
    run: Callable[[int, int, Advance], Sequence[Finding]]


def passed(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed; says what did."""
    for finding in findings:
        for failure in finding.failures[:5]:
            print(f"{finding.fault}: {failure}", file=sys.stderr)
    return not any(finding.failures for finding in findings)


def main(*harnesses: Harness) -> None:
    """Run harnesses as the command line says, show how far they are, and print what they found."""
    parser = argparse.ArgumentParser(description="Harms kvproxy, and counts what comes of it.")
    parser.add_argument("--rounds", type=int, help="rounds of each harness; by default its own number")
    parser.add_argument("--seed", type=int, default=0, help="of what is random")
    parser.add_argument("--only", action="append", help="only this harness; may be repeated")
    asked = parser.parse_args()
    findings: list[Finding] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for harness in harnesses:
            if asked.only and harness.name not in asked.only:
                continue
            rounds = asked.rounds or harness.rounds
            task = progress.add_task(harness.name, total=rounds)
            found = harness.run(rounds, asked.seed, lambda task=task: progress.advance(task))  # type: ignore[misc]
            findings += found
    Console().print(_table(findings))
    sys.exit(0 if passed(findings) else 1)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table("fault", "rounds", "what happened", "failures", "seconds")
    for each in findings:
        happened = ", ".join(f"{name} {count:,}" for name, count in each.counts.items())
        table.add_row(each.fault, f"{each.rounds:,}", happened, str(len(each.failures)), f"{each.seconds:.1f}")
    return table


class Timer:
    """Adds the seconds of a block to a finding."""

    def __init__(self, finding: Finding) -> None:
        self._finding = finding

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._finding.seconds += time.monotonic() - self._began
