"""`kvproxy calibrate`: how well do the semantic policies decide on your questions?"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from kvproxy.analyse.charts import Chart
from kvproxy.commands.formatting import Formatted, percent, raw_text
from kvproxy.commands.options import Plot, load_settings
from kvproxy.commands.output import Output, print_charts, print_note, print_text, progress_bar
from kvproxy.commands.tables import Column, Row, number_column, print_table, text_column
from kvproxy.index.evaluation.confidence_intervals import pairs_for_bound, wilson_interval
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.index.evaluation.pair_evaluation import Calibration, LevelResult
    from kvproxy.index.evaluation.stream_evaluation import StreamReport
    from kvproxy.index.policies.policy import LearningStatus

_LISTED_PAIRS = 10


def calibrate(
    pairs: Annotated[
        Path | None, Argument(help='JSON lines {"a", "b", "same"}; b is stored; .gz or - (stdin) too.')
    ] = None,
    target_error: Annotated[float, Option(help="Maximum share of wrong hits.", min=0.0, max=1.0)] = 0.05,
    embedder: Annotated[str | None, Option(help="Embedder, as in serve.")] = None,
    verifier: Annotated[str | None, Option(help="Verifier, as in serve; none skips the policy checked.")] = None,
    stream: Annotated[Path | None, Option(help='Replay JSON lines {"text", "answer"} in order instead.')] = None,
    max_error: Annotated[float, Option(help="With --stream: error bound of learned.", min=0.0001, max=0.5)] = 0.02,
    judge: Annotated[str, Option(help="With --stream: equality for labels, or similarity for texts.")] = "equality",
    judge_error: Annotated[float, Option(help="With --stream: share of wrong comparisons.", min=0.0, max=0.5)] = 0.0,
    orders: Annotated[int, Option(help="With --stream: additional replays in random orders.", min=0)] = 0,
    plot: Plot = None,
) -> Output:
    """Measure semantic policies on your own questions.

    With labelled pairs it reports hits and wrong hits for each minimum score, and recommends one. The score of the policy
    `threshold` is the cosine similarity; the score of the policy `checked` is the verifier's probability. The question `b` of
    a pair is the stored one, and `a` arrives; the decision can depend on this order.

    With --stream it replays questions in order, and reports the hit rate and the wrong hits of the policies `learned` and
    `checked`, and of the fixed threshold that was best in hindsight.

    Example: kvproxy calibrate pairs.jsonl.gz --target-error 0.02 --plot curves.svg

    Example: kvproxy calibrate --stream questions.jsonl.gz --max-error 0.02
    """
    from kvproxy.analyse import calibration
    from kvproxy.commands.files import save_charts, stdin_or_path
    from kvproxy.errors import SettingsError

    settings = load_settings(embedder=embedder, cache={"verifier": verifier} if verifier else None)
    if stream is not None and pairs is None:
        with progress_bar("replaying") as progress:
            report = calibration.calibrate_stream(
                stdin_or_path(stream), settings, max_error, judge, judge_error, orders, progress
            )
        charts = calibration.stream_charts(report)
        save_charts(charts, plot)
        return Output(report.document(), lambda: _print_stream_report(report, settings.cache.policy, charts))
    if pairs is not None and stream is None:
        with progress_bar("measuring") as progress:
            result = calibration.calibrate_pairs(stdin_or_path(pairs), settings, target_error, progress)
        charts = calibration.calibration_charts(result)
        save_charts(charts, plot)
        return Output(result.document(), lambda: _print_calibration(result, charts))
    raise SettingsError("give either a file of pairs, or a stream with --stream FILE")


def _print_calibration(result: "Calibration", charts: list[Chart]) -> None:
    print_text(f"{plural(result.pairs, 'distinct pair')}, {result.same:,} of them equivalent")
    if result.contradictory:
        print_text(f"{plural(result.contradictory, 'pair')} of texts with both labels left out")
    rows: list[Row] = []
    recommended = {
        name: point.hit_rate
        for name, curve in result.curves.items()
        for point in curve
        if point.level == result.recommended[name]
    }
    limit = f"at most {percent(result.target_error)} wrong hits with 95% confidence"
    best = max(recommended, key=recommended.__getitem__, default=None)
    for name, curve in sorted(result.curves.items(), key=lambda item: -recommended.get(item[0], -1.0)):
        level, current_level = result.recommended[name], result.default[name]
        if level is not None:
            print_text(f"{name}: level {level} has {limit}; setting: {current_level}")
        rows += [
            {"Policy": name, **_minimum_score_row(point, current_level, level, name == best)}
            for point in curve
            if point.level in (current_level, level)
        ]
    if missed := [name for name, level in result.recommended.items() if level is None]:
        print_text(f"{', '.join(missed)}: no level has {limit}")
        print_text(f"{_needed_pairs_sentence(result.target_error)}; --target-error sets another limit.")
    print_charts(charts)
    print_table(rows)
    _print_wrong_pairs(result)
    same = plural(result.same, "equivalent pair")
    print_text(
        f"Served counts all pairs at or above the level. Hit rate is the served share of the {same}, wrong the share of other"
        f" pairs among the served ones."
    )


def _print_wrong_pairs(result: "Calibration") -> None:
    # The last policy decides most strictly: `checked`, or else `guards`.
    name = list(result.curves)[-1]
    pairs = result.wrong[name]
    if not pairs:
        return
    print_table(
        (
            {"Score#": f"{pair.score:.3f}", text_column("Question"): pair.a, text_column("Stored question"): pair.b}
            for pair in pairs[:_LISTED_PAIRS]
        ),
        title=f"{plural(len(pairs), 'wrong pair')} of {name} at the setting {result.default[name]:.4g}",
    )
    if len(pairs) > _LISTED_PAIRS:
        print_note(
            f"and {len(pairs) - _LISTED_PAIRS:,} more wrong pairs: list all, also of other policies, with --json"
        )


def _minimum_score_row(
    point: "LevelResult", current_level: float, recommended: float | None, is_best: bool
) -> dict[Column | str, object]:
    recommendation = "recommended, best" if is_best else "recommended"
    uses = [name for name, level in (("setting", current_level), (recommendation, recommended)) if point.level == level]
    return {
        "Level#": f"{point.level:.4g}",
        "Use": ", ".join(uses),
        "Served#": point.served,
        "Hit rate#": percent(point.hit_rate),
        number_column("95% interval", "hit_interval", optional=True): _interval(point.hit_interval),
        "Wrong#": None if point.wrong_share is None else percent(point.wrong_share),
        number_column("95% interval", "wrong_interval", optional=True): _interval(point.wrong_interval),
    }


def _interval(bounds: tuple[float, float]) -> Formatted:
    return Formatted("-".join(map(percent, bounds)), "-".join(map(raw_text, bounds)))


def _needed_pairs_sentence(target_error: float) -> str:
    if not target_error:
        return "No number of pairs shows that no hit is wrong"
    return f"This limit takes {plural(pairs_for_bound(target_error), 'served pair')} without a wrong hit, and more with one"


def _bound_sentence(learning: "LearningStatus") -> str:
    served, by_checked, bound = f"{learning.served:,}", learning.by_checked, percent(learning.max_error)
    if learning.expected_wrong is None:
        return (
            f"How many of the {served} hits of learned are wrong is unknown to it, because no comparison estimates it."
        )
    most = f"learned has at most {learning.most_wrong:,} wrong ones among its {served} hits by its own comparisons"
    if not by_checked:
        return f"{most} (90% confidence); from the 500th hit on, its bound is {bound}."
    return (
        f"{most}. checked accepted {by_checked:,} of these hits, for which this number is the end of a 95% interval, and {bound}"
        f" a goal; the bound {bound} (90% confidence, from the 500th hit on) is for the others only."
    )


def _doubts(report: "StreamReport") -> Iterator[str]:
    """Say what the stream does not prove about the best policy."""
    if report.best is None:
        return
    outcome = report.outcomes[report.best]
    wrong, served = int(outcome.wrong.sum()), int(outcome.served.sum())
    most = wilson_interval(wrong, served)[1]
    if most > report.max_error:
        yield (
            f"The stream is too short: with {wrong:,} of {served:,} hits wrong, up to {percent(most)} of further hits"
            f" may be (95%), more than {percent(report.max_error)}."
        )
    if report.best == "threshold":
        yield (
            "A fixed threshold serves many near-misses, which are similar questions with another answer. If users ask such"
            " questions and this stream has none, prefer checked or learned (docs/trust.md)."
        )


def _print_stream_report(report: "StreamReport", policy: str, charts: list[Chart]) -> None:
    print_charts(charts)
    document = report.document()
    within = {name for name, outcome in report.outcomes.items() if outcome.wrong_share <= report.max_error}
    ordered = sorted(report.outcomes.items(), key=lambda item: (item[0] not in within, -item[1].hit_rate))
    rows: list[Row] = [
        {
            "Policy": name if name != "threshold" or report.level is None else f"threshold {report.level}",
            "Hit rate#": percent(outcome.hit_rate),
            "Wrong#": percent(outcome.wrong_share),
            "Worst#": percent(outcome.worst_wrong_share),
            "Use": "best" if name == report.best else "",
        }
        for name, outcome in ordered
    ]
    print_table(rows, title=plural(report.requests, "request"))
    print_text(
        "learned compares answers of which no two have the same text, as a sampled model words them; the row of equal texts is"
        " for fixed responses."
    )
    print_text(
        f"{_bound_sentence(report.learning)} threshold is the best fixed threshold in hindsight; best has the highest hit rate"
        f" with at most {percent(report.max_error)} wrong hits; worst is the largest share of wrong hits after 500 hits. Wrong is"
        " counted with all answers of the stream; learned knows only those that it compared."
    )
    if report.best not in (None, policy):
        level = f" and cache.min_similarity = {report.level}" if report.best == "threshold" else ""
        print_text(f'The settings have the policy {policy}. For best, set cache.policy = "{report.best}"{level}.')
    for sentence in _doubts(report):
        print_text(sentence)
    if report.random_orders:
        orders = document["orders"]
        print_text(
            f"{orders['count']} random orders: hit rate {percent(orders['hit_rate'])}, wrong"
            f" {percent(orders['wrong_share'])} (medians), worst {percent(orders['worst'])}; within the bound in"
            f" {orders['within']}"
        )
