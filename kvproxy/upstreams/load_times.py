"""Measures how long an engine takes to load a prefix from each medium, compared with computing it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

ASSUMED_COSTS = {"CPU": 0.1, "EXTERNAL": 0.3, "REMOTE": 0.3, "DISK": 0.5}
"""Load time of a token by medium, relative to the time of its prefill, until it is measured; see docs/routing.md."""
_OTHER_COST = 1.0
_MAX_COST = 4.0
# Shorter prompts take mostly constant time.
_MIN_TOKENS = 512
_MIN_SAMPLES = 3
_MAX_SAMPLES = 64


def _samples() -> deque[float]:
    return deque(maxlen=_MAX_SAMPLES)


@dataclass(slots=True)
class LoadTimes:
    """Seconds per token of prefill and of loading, from requests that an engine served alone."""

    _prefill: deque[float] = field(default_factory=_samples)
    _loads: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, seconds: float, computed_tokens: int, loaded: Mapping[str, int]) -> None:
        """Add a request whose first chunk came after `seconds`. `loaded` has the loaded tokens by medium."""
        loaded = {medium: tokens for medium, tokens in loaded.items() if tokens}
        if not loaded:
            if computed_tokens >= _MIN_TOKENS:
                self._prefill.append(seconds / computed_tokens)
        elif len(loaded) == 1 and (prefill := self.prefill_seconds) is not None:
            ((medium, tokens),) = loaded.items()
            if tokens >= _MIN_TOKENS and medium in ASSUMED_COSTS:
                load_seconds = max(0.0, seconds - computed_tokens * prefill)
                self._loads.setdefault(medium, _samples()).append(load_seconds / tokens)

    @property
    def prefill_seconds(self) -> float | None:
        """Median seconds per computed token; None before enough requests."""
        return median(self._prefill) if len(self._prefill) >= _MIN_SAMPLES else None

    def cost(self, medium: str) -> float:
        """Return the load time of a token, relative to the time of its prefill."""
        prefill, loads = self.prefill_seconds, self._loads.get(medium, ())
        if prefill and len(loads) >= _MIN_SAMPLES:
            return min(median(loads) / prefill, _MAX_COST)
        return ASSUMED_COSTS.get(medium, _OTHER_COST)

    def load_cost(self, loaded: Mapping[str, int]) -> float:
        """Return the time to load tokens by medium, in tokens of prefill."""
        return sum(tokens * self.cost(medium) for medium, tokens in loaded.items())

    def measured(self) -> dict[str, float]:
        """Return the measured costs by medium."""
        return {medium: self.cost(medium) for medium, loads in self._loads.items() if len(loads) >= _MIN_SAMPLES}
