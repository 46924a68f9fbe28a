"""What a policy would have served of labelled pairs, level by level, to choose its level from."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from kvproxy.index.evaluation.labelled_pairs import Pair
from kvproxy.index.evaluation.wilson import wilson
from kvproxy.index.models.embedder import Embedder
from kvproxy.index.models.languages import EVERY, can_match
from kvproxy.index.models.verifier import Verifier
from kvproxy.index.policies.guards import GUARDS, Guard

LEVELS = tuple(round(float(level), 3) for level in np.arange(0.70, 0.9951, 0.005))
# Denser towards 1, where a verifier tells the most.
_SHARES = (*np.arange(0.05, 0.7, 0.01), *np.arange(0.7, 0.9995, 0.005), *(1 - np.geomspace(1e-4, 0.05, 30)))
PROBABILITIES = tuple(sorted({round(float(level), 4) for level in _SHARES}))
Progress = Callable[[float], None]
T = TypeVar("T")
_BATCH = 256


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
class Levels:
    """The levels in use, to be measured too.

    Attributes:
        threshold: least cosine of the policy `threshold`.
        checked: least probability of the policy `checked`.
        floor: least cosine of what that policy verifies.
    """

    threshold: float
    checked: float
    floor: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Curves by policy, the level of each that is in use, and the one that keeps to the target error (None where none does)."""

    pairs: int
    same: int
    target_error: float
    default: dict[str, float]
    curves: dict[str, list[Point]]
    recommended: dict[str, float | None]

    def document(self) -> dict[str, Any]:
        """JSON-able: the totals, and each policy under its name."""
        return {"pairs": self.pairs, "same": self.same, "target_error": self.target_error} | {
            name: {
                "default_level": self.default[name],
                "recommended_level": self.recommended[name],
                "curve": [asdict(point) for point in curve],
            }
            for name, curve in self.curves.items()
        }


def calibrate(
    pairs: Sequence[Pair],
    embedder: Embedder,
    verifier: Verifier | None,
    levels: Levels,
    *,
    target_error: float = 0.05,
    guards: Sequence[Guard] = GUARDS,
    languages: Sequence[str] = (EVERY,),
    progress: Progress = lambda share: None,
) -> Calibration:
    """Curves of `threshold` (cosine alone), `guards` (cosine, then the guards) and `checked` (floor, guards, verifier).

    Args:
        pairs: the first question of each is asked, the second is the cached one.
        verifier: None leaves `checked` out.
        levels: those in use.
        target_error: largest wrong share that a recommended level may have, by the upper end of its interval.
        languages: codes of the languages in which the proxy matches questions, as in `cache.languages`.
        progress: called with the share of the work that is done.

    Raises:
        ValueError: there is no pair.
    """
    if not pairs:
        raise ValueError("no pairs")
    same = np.array([pair.same for pair in pairs])
    cosine = _similarity(pairs, embedder, languages, lambda share: progress(share / 2))
    cosines = sorted({*LEVELS, levels.threshold})
    # Guards and verifier are asked only about what a policy could serve.
    asked = cosine >= min(cosines[0], levels.floor)
    passed = asked & np.array(
        [
            bool(ask) and not any(guard.vetoes(pair.a, pair.b) for guard in guards)
            for pair, ask in zip(pairs, asked, strict=True)
        ]
    )
    default = {"threshold": levels.threshold, "guards": levels.threshold}
    curves = {
        "threshold": _curve(cosine, same, cosines),
        "guards": _curve(np.where(passed, cosine, -1.0), same, cosines),
    }
    if verifier is not None:
        left = passed & (cosine >= levels.floor)
        probability = _verify(pairs, left, cosine, verifier, lambda share: progress((1 + share) / 2))
        default["checked"] = levels.checked
        curves["checked"] = _curve(probability, same, sorted({*PROBABILITIES, levels.checked}))
    recommended = {name: _recommend(curve, target_error) for name, curve in curves.items()}
    return Calibration(len(pairs), int(same.sum()), target_error, default, curves, recommended)


def _similarity(pairs: Sequence[Pair], embedder: Embedder, languages: Sequence[str], progress: Progress) -> np.ndarray:
    """Cosines; -1 if the proxy would match one of the questions exactly only."""
    # By length, so that no batch is padded to one long text.
    texts = sorted({text for pair in pairs for text in (pair.a, pair.b)}, key=len)
    places = {text: place for place, text in enumerate(texts)}
    vectors = np.concatenate([embedder.embed(batch) for batch in _batches(texts, progress)])
    read = np.array([can_match(text, embedder, languages) for text in texts])
    ones, others = ([places[text] for text in side] for side in zip(*((pair.a, pair.b) for pair in pairs), strict=True))
    cosine = np.einsum("ij,ij->i", vectors[ones], vectors[others])
    return np.where(read[ones] & read[others], cosine, -1.0)


def _verify(
    pairs: Sequence[Pair], left: np.ndarray, cosine: np.ndarray, verifier: Verifier, progress: Progress
) -> np.ndarray:
    """The verifier's probability of each pair that is left, -1 elsewhere."""
    found = np.full(len(pairs), -1.0)
    places = sorted(np.flatnonzero(left).tolist(), key=lambda place: len(pairs[place].a) + len(pairs[place].b))
    for batch in _batches(places, progress):
        found[batch] = verifier.score([(pairs[place].a, pairs[place].b) for place in batch], cosine[batch])
    return found


def _batches(items: Sequence[T], progress: Progress) -> Iterator[list[T]]:
    for start in range(0, len(items), _BATCH):
        yield list(items[start : start + _BATCH])
        progress(min(1.0, (start + _BATCH) / len(items)))


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
