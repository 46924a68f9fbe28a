"""Figures since the screen was opened, in bounded memory."""

from collections.abc import Mapping

_MOST = 512


class History:
    """Remembers figures over time: when there are too many points, two neighbours become one, their mean.

    Args:
        most: points kept of each figure, made even: each has a neighbour then.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most + most % 2
        self._points: dict[str, list[float]] = {}
        self._partial: dict[str, list[float]] = {}
        self._looks = 0
        self.span = 1
        """Looks that a point stands for."""

    def add(self, figures: Mapping[str, float]) -> None:
        """Take the figures of one look."""
        for name, value in figures.items():
            self._partial.setdefault(name, []).append(value)
        self._looks += 1
        if self._looks % self.span:
            return
        for name, values in self._partial.items():
            self._points.setdefault(name, []).append(sum(values) / len(values))
        self._partial.clear()
        if max(map(len, self._points.values()), default=0) >= self._most:
            self._points = {name: _means(points, 2) for name, points in self._points.items()}
            self.span *= 2

    def __len__(self) -> int:
        return self._looks

    def names(self) -> list[str]:
        """Of the figures that came."""
        return list(self._points)

    def series(self, name: str, width: int) -> list[float]:
        """All points of a figure since the start, as means in at most so many steps."""
        points = self._points.get(name, [])
        return _means(points, -(-len(points) // max(1, width))) if points else []


def _means(values: list[float], count: int) -> list[float]:
    parts = (values[start : start + count] for start in range(0, len(values), count))
    return [sum(part) / len(part) for part in parts]
