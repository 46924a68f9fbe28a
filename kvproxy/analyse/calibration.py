"""Measures the semantic policies on labelled pairs, and on a stream of questions."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kvproxy.analyse.charts import Chart, ChartLine
from kvproxy.errors import NotFound, SettingsError
from kvproxy.index.errors import EmbedderError, ImportFailed, VerifierError
from kvproxy.index.evaluation.labelled_pairs import LabelledPair, read_pairs
from kvproxy.index.evaluation.pair_evaluation import Calibration, calibrate
from kvproxy.index.evaluation.stream_evaluation import (
    StreamReport,
    cumulative_counts,
    embed_stream,
    read_stream,
    replay_policies,
)
from kvproxy.index.evaluation.stream_replay import InMemoryObservations
from kvproxy.index.models.embedder import Embedder, load_embedder
from kvproxy.index.models.verifier import Verifier, load_verifier
from kvproxy.index.models.verifier.multilingual import new_words_detector
from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.settings import LEAST_SIMILARITY, Settings


def calibrate_pairs(
    file: Path, settings: Settings, target_error: float, progress: Callable[[float], None]
) -> Calibration:
    """Measure the semantic policies on the distinct labelled pairs of a file. Raises NotFound or SettingsError.

    `target_error` is the maximum share of wrong hits.
    """
    cache = settings.cache
    least = LEAST_SIMILARITY | ({cache.policy: cache.min_similarity} if cache.min_similarity is not None else {})
    with _explained_errors(file):
        # The intervals assume independent pairs.
        pairs, contradictory = _consistent_pairs(dict.fromkeys(read_pairs(file)))
        if not pairs:
            raise SettingsError(f"{file} contradicts all its pairs" if contradictory else f"{file} contains no pairs")
        embedder, verifier = _load_models(settings)
        return calibrate(
            pairs,
            embedder,
            verifier,
            {"threshold": least["threshold"], "checked": cache.min_probability},
            least["checked"],
            target_error=target_error,
            guards=GUARDS if cache.guards else (),
            languages=cache.languages_of(settings.embedder),
            contradictory=contradictory,
            progress=progress,
        )


def _consistent_pairs(pairs: Iterable[LabelledPair]) -> tuple[list[LabelledPair], int]:
    """Return the pairs of texts that have one label, and the number of pairs of texts that have both labels."""
    labels: dict[frozenset[str], set[bool]] = {}
    labelled = list(pairs)
    for pair in labelled:
        labels.setdefault(frozenset((pair.a, pair.b)), set()).add(pair.same)
    consistent = [pair for pair in labelled if len(labels[frozenset((pair.a, pair.b))]) == 1]
    return consistent, sum(len(text_labels) > 1 for text_labels in labels.values())


def calibrate_stream(
    file: Path,
    settings: Settings,
    max_error: float,
    judge: str,
    judge_error: float,
    orders: int,
    progress: Callable[[float], None],
) -> StreamReport:
    """Replay a file of questions with the semantic policies. Raises NotFound or SettingsError.

    Args:
        max_error: maximum share of wrong hits.
        judge: `equality` or `similarity`; compares two answers.
        judge_error: fraction of the comparisons to invert, to simulate errors of the judge.
        orders: number of additional replays in random orders.
    """
    if judge not in ("equality", "similarity"):
        raise SettingsError(f"unknown --judge {judge}: use equality or similarity")
    cache, guards = settings.cache, GUARDS if settings.cache.guards else ()
    with _explained_errors(file):
        lines = read_stream(file)
        embedder, verifier = _load_models(settings)
        similarity = cache.judge_similarity if judge == "similarity" else None
        stream = embed_stream(lines, embedder, similarity, progress)
        checked, new_words = None, new_words_detector(embedder.name)
        if verifier is not None:
            checked = CheckedPolicy(verifier, cache.min_probability, LEAST_SIMILARITY["checked"], guards)
        return replay_policies(
            stream,
            lambda: LearnedPolicy(
                InMemoryObservations(), checked, max_error, LEAST_SIMILARITY["learned"], guards, new_words
            ),
            checked,
            max_error,
            orders=orders,
            judge_error=judge_error,
            progress=lambda step, share: progress(share),
        )


def calibration_charts(result: Calibration) -> list[Chart]:
    lines = []
    for name, points in result.curves.items():
        served = [point for point in points if point.served]
        lows, highs = zip(*(point.wrong_interval for point in served), strict=True) if served else ((), ())
        rates, wrong = [point.hit_rate for point in served], [point.wrong_share or 0.0 for point in served]
        lines.append(ChartLine(name, rates, wrong, lows, highs))
    levels = [("target error", result.target_error)]
    return [Chart("hit rate on equivalent pairs", "wrong hits", lines, levels=levels, is_share=True)]


def stream_charts(report: StreamReport) -> list[Chart]:
    hits, wrong = [], []
    for name, outcome in report.outcomes.items():
        points = cumulative_counts(outcome)
        counts = [count for count, _, _ in points]
        hits.append(ChartLine(name, counts, [served / count for count, served, _ in points]))
        wrong.append(ChartLine(name, counts, [errors / max(1, served) for _, served, errors in points]))
    levels = [("max_error", report.max_error)]
    return [
        Chart("requests", "hit rate", hits, is_share=True),
        Chart("requests", "wrong hits", wrong, levels=levels, is_share=True),
    ]


@contextlib.contextmanager
def _explained_errors(file: Path) -> Iterator[None]:
    if not file.exists() or file.is_dir():
        raise NotFound(f"no file {file}: check the path")
    try:
        yield
    except (EmbedderError, VerifierError, ImportFailed) as error:
        raise SettingsError(str(error)) from None


def _load_models(settings: Settings) -> tuple[Embedder, Verifier | None]:
    embedder = load_embedder(settings.embedder)
    name = settings.cache.verifier
    return embedder, None if name == "none" else load_verifier(name, embedder.name)
