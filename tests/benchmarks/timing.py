"""Interleaved repetitions, so that changes of the machine's load affect all alternatives alike."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence


def interleave(works: Mapping[str, Callable[[], float | None]], rounds: int) -> dict[str, list[float]]:
    """Run each work once per round. Return the seconds that it took, or the number that it returned."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began = time.perf_counter()
            value = work()
            found[name].append(time.perf_counter() - began if value is None else value)
    return found


def median_ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios of each round."""
    return statistics.median(value / other for value, other in zip(values, base, strict=True))


def report(title: str, found: Mapping[str, list[float]], base: str, scale: float = 1e3, unit: str = "ms") -> None:
    """Print the median, minimum, maximum, and ratio to `base` of each work."""
    print(f"\n{title}\n{'':34} {'median':>10} {'min':>10} {'max':>10} {'ratio to ' + base:>26}")
    for name, values in found.items():
        shown = (statistics.median(values), min(values), max(values))
        cells = " ".join(f"{value * scale:8.2f}{unit:>2}" for value in shown)
        print(f"{name:34} {cells} {median_ratio(values, found[base]):26.3f}", flush=True)
