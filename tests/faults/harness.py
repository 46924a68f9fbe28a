"""Findings of a harness, and the distribution of its rounds."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
Advance = Callable[[], None]
"""A harness calls it after each round."""


@dataclass
class Finding:
    """The result of one kind of fault; it passed if `failures` is empty. The table shows `counts` in their order."""

    fault: str
    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @contextlib.contextmanager
    def timed(self) -> Iterator["Finding"]:
        """Add the duration of the block."""
        began = time.monotonic()
        yield self
        self.seconds += time.monotonic() - began

    @contextlib.contextmanager
    def catch(self, place: str) -> Iterator[None]:
        """Record an exception as a failure."""
        try:
            yield
        except Exception as error:
            self.failures.append(f"{place}: {type(error).__name__}: {error}")


def split(rounds: int, parts: Sequence[T]) -> Iterator[tuple[T, int]]:
    """Yield each part with its share of the rounds."""
    for place, part in enumerate(parts):
        yield part, rounds // len(parts) + (place < rounds % len(parts))


def passed(findings: Sequence[Finding]) -> bool:
    """Return whether nothing failed; print the first failures."""
    for finding in findings:
        for failure in finding.failures[:5]:
            print(f"{finding.fault}: {failure}", file=sys.stderr)
    return not any(finding.failures for finding in findings)
