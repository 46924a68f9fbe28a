"""Interleaved repetitions, so that a drifting machine drifts for everyone alike; medians are what is quoted."""

import statistics
import time
from collections.abc import Callable, Mapping


def interleave(works: Mapping[str, Callable[[], float | None]], repeat: int) -> dict[str, list[float]]:
    """Seconds of each work in each round, taken in turn. A work may return its own seconds instead of being timed."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeat):
        for name, work in works.items():
            began = time.perf_counter()
            own = work()
            seconds[name].append(time.perf_counter() - began if own is None else own)
    return seconds


def report(title: str, seconds: dict[str, list[float]], base: str, scale: float = 1e3, unit: str = "ms") -> None:
    """A row for each work: median, least and most, and its ratio to the base, round by round."""
    print(f"\n{title}")
    print(f"{'':34} {'median':>10} {'min':>10} {'max':>10} {'ratio to ' + base:>26}")
    for name, values in seconds.items():
        ratio = statistics.median(value / other for value, other in zip(values, seconds[base], strict=True))
        shown = (statistics.median(values), min(values), max(values))
        print(f"{name:34} " + " ".join(f"{value * scale:8.2f}{unit:>2}" for value in shown) + f" {ratio:26.3f}")
