"""Consistent hashing: an order of engines for a key, that changes little when engines come and go."""

import bisect
from collections.abc import Mapping

import xxhash

_POINTS = 160
"""Points of an engine of weight 1; more make shares more even."""


class Ring:
    """Engines on a circle.

    Args:
        weights: by name; an engine of weight 2 gets twice the keys.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._size = len(weights)
        self._points = sorted(
            (xxhash.xxh3_64_intdigest(f"{name}#{number}".encode()), name)
            for name, weight in weights.items()
            for number in range(max(1, round(_POINTS * weight)))
        )

    def order(self, key: bytes) -> list[str]:
        """All engines, the one that owns the key first, then those that take over without it."""
        start = bisect.bisect(self._points, (xxhash.xxh3_64_intdigest(key), ""))
        found: dict[str, None] = {}
        for step in range(len(self._points)):
            found[self._points[(start + step) % len(self._points)][1]] = None
            if len(found) == self._size:
                break
        return list(found)
