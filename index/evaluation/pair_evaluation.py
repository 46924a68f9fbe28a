"""Measures policies on labelled pairs of questions at many levels.

A level is the lowest score at which a policy serves a stored answer: a cosine for the policy `threshold`, and the verifier's
probability for the policy `checked`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvproxy.index.evaluation.confidence_intervals import wilson_interval
from kvproxy.index.evaluation.labelled_pairs import LabelledPair
from kvproxy.index.evaluation.stream_evaluation import Progress, embed_texts
from kvproxy.index.evaluation.stream_replay import precision_hit_ratio_area
from kvproxy.index.models.embedder import Embedder
from kvproxy.index.models.languages import EVERY, can_match
from kvproxy.index.models.verifier import Verifier
from kvproxy.index.policies.guards import ADDITIONS, GUARDS, Guard

LEVELS = tuple(round(float(level), 3) for level in np.arange(0.70, 0.9951, 0.005))
_SHARES = (*np.arange(0.05, 0.7, 0.01), *np.arange(0.7, 0.9995, 0.005), *(1 - np.geomspace(1e-4, 0.05, 30)))
PROBABILITIES = tuple(sorted({round(float(level), 4) for level in _SHARES}))
_BATCH = 256


@dataclass(frozen=True, slots=True)
class LevelResult:
    """The results of a policy at one level. A pair is served if its score reaches the level; the intervals have 95% confidence.

    Attributes:
        hit_rate: share of served pairs among the pairs with the same answer.
        wrong_share: share of pairs with different answers among the served pairs, if any.
    """

    level: float
    hit_rate: float
    wrong_share: float | None
    served: int
    hit_interval: tuple[float, float]
    wrong_interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class WrongPair:
    """Two questions with different answers whose score reaches the configured level."""

    a: str
    b: str
    score: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The results of `threshold`, `guards` (`threshold` with guards), and `checked`, which are the keys of the dictionaries.

    Attributes:
        pairs, same: number of pairs, and of pairs with the same answer.
        contradictory: number of pairs that are left out, because the file has both labels for their texts.
        default: the configured level.
        wrong: the wrong pairs at the configured level, the highest score first.
        recommended: the level with the most hits whose share of wrong answers is within `target_error`, if any.
    """

    pairs: int
    same: int
    target_error: float
    default: dict[str, float]
    curves: dict[str, list[LevelResult]]
    p_chr_auc: dict[str, float]
    recommended: dict[str, float | None]
    wrong: dict[str, list[WrongPair]]
    contradictory: int = 0

    def document(self) -> dict[str, Any]:
        counts = {"pairs": self.pairs, "same": self.same, "contradictory": self.contradictory}
        return (
            counts | {"target_error": self.target_error} | {name: self._policy_document(name) for name in self.curves}
        )

    def _policy_document(self, name: str) -> dict[str, Any]:
        return {
            "default_level": self.default[name],
            "recommended_level": self.recommended[name],
            "p_chr_auc": self.p_chr_auc[name],
            "curve": [asdict(point) for point in self.curves[name]],
            "wrong": [asdict(pair) for pair in self.wrong[name]],
        }


def calibrate(
    pairs: Sequence[LabelledPair],
    embedder: Embedder,
    verifier: Verifier | None,
    levels: Mapping[str, float],
    floor: float,
    *,
    target_error: float = 0.05,
    guards: Sequence[Guard] = GUARDS,
    languages: Sequence[str] = (EVERY,),
    contradictory: int = 0,
    progress: Progress = lambda share: None,
) -> Calibration:
    """Measure the policy `threshold` without guards, the same with guards, and the policy `checked`.

    Args:
        pairs: the second question of each pair is used as the cached question.
        verifier: None omits the policy `checked`.
        levels: the levels of `threshold` and `checked` in the settings.
        floor: minimum cosine of `checked`.
        target_error: maximum share of wrong answers at a recommended level: the upper end of `LevelResult.wrong_interval`.
        contradictory: see `Calibration`.
        languages: ISO 639-1 codes; pairs in other languages are never served.
    """
    same = np.array([pair.same for pair in pairs])
    cosine = _cosines(pairs, embedder, languages, lambda share: progress(share / 2))
    cosines = sorted({*LEVELS, levels["threshold"]})
    asked = cosine >= min(cosines[0], floor)
    passed = _pass_guards(pairs, asked, guards)
    default = dict.fromkeys(("threshold", "guards"), levels["threshold"])
    scores = {"threshold": cosine, "guards": np.where(passed, cosine, -1.0)}
    tested = dict.fromkeys(scores, cosines)
    if verifier is not None:
        readable = np.array([verifier.can_read(pair.a) for pair in pairs])
        left = _pass_guards(pairs, passed & readable & (cosine >= floor), [ADDITIONS] if guards else [])
        scores["checked"] = _verifier_scores(pairs, left, cosine, verifier, lambda share: progress((1 + share) / 2))
        default["checked"] = levels["checked"]
        tested["checked"] = sorted({*PROBABILITIES, levels["checked"]})
    curves = {name: _level_results(policy_scores, same, tested[name]) for name, policy_scores in scores.items()}
    areas = {name: precision_hit_ratio_area(policy_scores, same) for name, policy_scores in scores.items()}
    recommended = {name: _recommend(curve, target_error) for name, curve in curves.items()}
    wrong = {name: _wrong_pairs(pairs, policy_scores, default[name]) for name, policy_scores in scores.items()}
    same_pairs = int(same.sum())
    return Calibration(len(pairs), same_pairs, target_error, default, curves, areas, recommended, wrong, contradictory)


def _wrong_pairs(pairs: Sequence[LabelledPair], scores: np.ndarray, level: float) -> list[WrongPair]:
    wrong = [
        WrongPair(pair.a, pair.b, float(score))
        for pair, score in zip(pairs, scores, strict=True)
        if score >= level and not pair.same
    ]
    return sorted(wrong, key=lambda pair: -pair.score)


def _cosines(
    pairs: Sequence[LabelledPair], embedder: Embedder, languages: Sequence[str], progress: Progress
) -> np.ndarray:
    texts = [pair.a for pair in pairs] + [pair.b for pair in pairs]
    vectors = embed_texts(texts, embedder, progress)
    known = {text: can_match(text, embedder, languages) for text in set(texts)}
    cosine = np.einsum("ij,ij->i", vectors[: len(pairs)], vectors[len(pairs) :])
    return np.where([known[pair.a] and known[pair.b] for pair in pairs], cosine, -1.0)


def _pass_guards(pairs: Sequence[LabelledPair], chosen: np.ndarray, guards: Sequence[Guard]) -> np.ndarray:
    def passes(pair: LabelledPair) -> bool:
        return not any(guard.vetoes(pair.a, pair.b) for guard in guards)

    return np.array([bool(asked) and passes(pair) for pair, asked in zip(pairs, chosen, strict=True)])


def _verifier_scores(
    pairs: Sequence[LabelledPair], selected: np.ndarray, cosine: np.ndarray, verifier: Verifier, progress: Progress
) -> np.ndarray:
    scores = np.full(len(pairs), -1.0)
    places = sorted(np.flatnonzero(selected).tolist(), key=lambda place: len(pairs[place].a) + len(pairs[place].b))
    for start in range(0, len(places), _BATCH):
        batch = places[start : start + _BATCH]
        scores[batch] = verifier.score([(pairs[place].a, pairs[place].b) for place in batch], cosine[batch])
        progress(min(1.0, (start + _BATCH) / len(places)))
    return scores


def _level_results(scores: np.ndarray, same: np.ndarray, levels: Iterable[float]) -> list[LevelResult]:
    total = int(same.sum())
    points = []
    for level in levels:
        served = scores >= level
        count, right = int(served.sum()), int((served & same).sum())
        shares = right / max(1, total), (count - right) / count if count else None
        points.append(
            LevelResult(level, *shares, count, wilson_interval(right, total), wilson_interval(count - right, count))
        )
    return points


def _recommend(curve: Sequence[LevelResult], target: float) -> float | None:
    best: float | None = None
    for point in reversed([point for point in curve if point.served]):
        if point.wrong_interval[1] <= target:
            best = point.level
        elif best is not None:
            break
        # At the highest levels, too few pairs are served for a narrow interval.
    return best
