"""What a policy would have served of labelled pairs, level by level, to choose its level from."""

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.embedder import Embedder
from index.errors import ImportFailed
from index.guards import GUARDS, Guard

LEVELS = tuple(round(float(level), 3) for level in np.arange(0.70, 0.9951, 0.005))
_Z = 1.96  # 95%


@dataclass(frozen=True, slots=True)
class Pair:
    """Two questions, and whether one answer serves both."""

    a: str
    b: str
    same: bool


@dataclass(frozen=True, slots=True)
class Point:
    """What is served from a level on.

    Attributes:
        hit_rate: share of the pairs that are the same which are served.
        wrong_share: share of the served pairs that are not the same; None where nothing is served.
        served: pairs.
        hit_interval, wrong_interval: 95% Wilson intervals.
    """

    level: float
    hit_rate: float
    wrong_share: float | None
    served: int
    hit_interval: tuple[float, float]
    wrong_interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Curves by policy, and the level of each that keeps to the target error (None where none does)."""

    pairs: int
    same: int
    target_error: float
    default_level: float
    curves: dict[str, list[Point]]
    recommended: dict[str, float | None]

    def document(self) -> dict[str, Any]:
        """JSON-able: the totals, and each policy under its name."""
        return {
            "pairs": self.pairs,
            "same": self.same,
            "target_error": self.target_error,
        } | {
            name: {
                "default_level": self.default_level,
                "recommended_level": self.recommended[name],
                "curve": [asdict(point) for point in curve],
            }
            for name, curve in self.curves.items()
        }


def read_pairs(path: Path) -> Iterator[Pair]:
    """Pairs of a file of JSON lines `{"a", "b", "same"}`, gzipped where its name ends in `.gz`.

    Raises:
        ImportFailed: a line is something else; the message names it.
    """
    number = 1
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    yield _pair(json.loads(line))
                number += 1
    except (ValueError, KeyError, TypeError, OSError, EOFError):
        raise ImportFailed(
            f'{path}, line {number}: expected JSON such as {{"a": "..", "b": "..", "same": 1}}'
        ) from None


def _pair(record: dict[str, Any]) -> Pair:
    a, b, same = record["a"], record["b"], record["same"]
    if not (isinstance(a, str) and isinstance(b, str) and same in (0, 1)):
        raise ValueError
    return Pair(a, b, bool(same))


def calibrate(
    pairs: Sequence[Pair],
    embedder: Embedder,
    *,
    default_level: float,
    target_error: float = 0.05,
    guards: Sequence[Guard] = GUARDS,
) -> Calibration:
    """Curves of `threshold` (cosine alone) and `guards` (cosine, then the guards).

    Args:
        default_level: the level in use.
        target_error: largest wrong share that a recommended level may have, by the upper end of its interval.

    Raises:
        ValueError: there is no pair.
    """
    if not pairs:
        raise ValueError("no pairs")
    same = np.array([pair.same for pair in pairs])
    cosine = _similarity(pairs, embedder)
    levels = sorted({*LEVELS, default_level})
    # Guards are asked only about what the lowest level would serve.
    passed = np.array(
        [
            bool(score >= levels[0]) and not any(guard.vetoes(pair.a, pair.b) for guard in guards)
            for pair, score in zip(pairs, cosine, strict=True)
        ]
    )
    curves = {
        "threshold": _curve(cosine, same, levels),
        "guards": _curve(np.where(passed, cosine, -1.0), same, levels),
    }
    recommended = {name: _recommend(curve, target_error) for name, curve in curves.items()}
    return Calibration(len(pairs), int(same.sum()), target_error, default_level, curves, recommended)


def _similarity(pairs: Sequence[Pair], embedder: Embedder) -> np.ndarray:
    # By length, so that no batch is padded to one long text.
    texts = sorted({text for pair in pairs for text in (pair.a, pair.b)}, key=len)
    places = {text: place for place, text in enumerate(texts)}
    vectors = embedder.embed(texts)
    cosine: np.ndarray = np.einsum(
        "ij,ij->i", vectors[[places[pair.a] for pair in pairs]], vectors[[places[pair.b] for pair in pairs]]
    )
    return cosine


def _curve(scores: np.ndarray, same: np.ndarray, levels: Iterable[float]) -> list[Point]:
    total = int(same.sum())
    points = []
    for level in levels:
        served = scores >= level
        count, right = int(served.sum()), int((served & same).sum())
        points.append(
            Point(
                level,
                right / total if total else 0.0,
                (count - right) / count if count else None,
                count,
                wilson(right, total),
                wilson(count - right, count),
            )
        )
    return points


def _recommend(curve: Sequence[Point], target: float) -> float | None:
    """The lowest level from which on every level that serves anything keeps to the target, as far as the data can tell."""
    best: float | None = None
    for point in reversed(curve):
        if point.served and point.wrong_interval[1] > target:
            # At the strict end too little is served to tell; a level below may still be known to be good.
            if best is not None:
                break
            continue
        if point.served:
            best = point.level
    return best


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95% Wilson interval of a share, (0, 1) where there is nothing to go by."""
    if not total:
        return 0.0, 1.0
    share = count / total
    centre = share + _Z**2 / (2 * total)
    spread = _Z * math.sqrt(share * (1 - share) / total + _Z**2 / (4 * total**2))
    scale = 1 + _Z**2 / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
