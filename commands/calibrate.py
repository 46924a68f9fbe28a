"""kvproxy calibrate: what each policy would serve of labelled pairs, and the level for a target error; or of a stream."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvproxy.commands.files import PICTURES, check_place, writing
from kvproxy.commands.options import Json
from kvproxy.commands.output import percent, print_json, print_table, shown_progress

if TYPE_CHECKING:
    from kvproxy.index.evaluation.calibrate import Calibration, Point


def calibrate(
    pairs: Annotated[
        Path | None,
        typer.Argument(help='JSON lines {"a", "b", "same"}, gzipped where it ends in .gz.', show_default=False),
    ] = None,
    target_error: Annotated[
        float, typer.Option(help="Largest share of wrong answers among those served.", min=0.0, max=1.0)
    ] = 0.05,
    embedder: Annotated[str | None, typer.Option(help="As for serve.", show_default=False)] = None,
    verifier: Annotated[
        str | None, typer.Option(help="As for serve; none leaves the policy checked out.", show_default=False)
    ] = None,
    stream: Annotated[
        Path | None,
        typer.Option(help='Replay JSON lines {"text", "answer"} in their order instead.', show_default=False),
    ] = None,
    max_error: Annotated[
        float, typer.Option(help="With --stream: the bound that learned keeps.", min=0.0001, max=0.5)
    ] = 0.02,
    judge: Annotated[
        str,
        typer.Option(help="With --stream: equality where answers are labels, similarity where they are texts."),
    ] = "equality",
    judge_error: Annotated[
        float, typer.Option(help="With --stream: the share of comparisons that its judge gets wrong.", min=0.0, max=0.5)
    ] = 0.0,
    orders: Annotated[int, typer.Option(help="With --stream: replay learned in so many random orders too.", min=0)] = 0,
    plot: Annotated[Path | None, typer.Option(help="Write the curves as .png or .svg.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Measure hits and wrong answers of each policy, level by level, on labelled pairs, and recommend a level.

    The level of threshold and guards is the cosine similarity, that of checked the verifier's probability.

    With --stream, questions are asked one after the other as a proxy would be: what is not served is answered, stored and
    learned from. It reports the hit rate and the wrong answers of learned, checked, and the best fixed cosine in hindsight.

    Example: kvproxy calibrate pairs.jsonl.gz --target-error 0.02 --plot curves.svg

    Example: kvproxy calibrate --stream questions.jsonl.gz --max-error 0.02
    """
    from kvproxy.errors import SettingsError

    if (pairs is None) == (stream is None):
        raise SettingsError("give a file of pairs, or a stream: kvproxy calibrate PAIRS, or --stream FILE")
    check_place(plot, PICTURES)
    if stream is not None:
        from kvproxy.commands.calibrate_stream import replay_stream

        replay_stream(stream, max_error, judge, judge_error, orders, embedder, verifier, plot, as_json)
        return
    assert pairs is not None
    _of_pairs(pairs, target_error, embedder, verifier, plot, as_json)


def _of_pairs(
    pairs: Path, target_error: float, embedder: str | None, verifier: str | None, plot: Path | None, as_json: bool
) -> None:
    from kvproxy.errors import NotFound, SettingsError
    from kvproxy.index.errors import EmbedderError, ImportFailed, VerifierError
    from kvproxy.index.evaluation.calibrate import Levels
    from kvproxy.index.evaluation.calibrate import calibrate as measure
    from kvproxy.index.evaluation.labelled_pairs import read_pairs
    from kvproxy.index.models.embedder import load_embedder
    from kvproxy.index.models.verifier import load_verifier
    from kvproxy.index.policies.guards import GUARDS
    from kvproxy.settings import LEAST_SIMILARITY, load_settings

    if not pairs.is_file():
        raise NotFound(f"no file {pairs}")
    settings = load_settings(embedder=embedder, cache={"verifier": verifier} if verifier else None)
    cache = settings.cache
    least = LEAST_SIMILARITY | ({cache.policy: cache.threshold} if cache.threshold is not None else {})
    levels = Levels(least["threshold"], cache.level, least["checked"])
    try:
        rows = list(read_pairs(pairs))
        if not rows:
            raise SettingsError(f"{pairs} holds no pairs")
        model = load_embedder(settings.embedder)
        reads_both = None if cache.verifier == "none" else load_verifier(cache.verifier, model.name)
        with shown_progress("measuring") as progress:
            result = measure(
                rows,
                model,
                reads_both,
                levels,
                target_error=target_error,
                guards=GUARDS if cache.guards else (),
                languages=cache.languages,
                progress=progress,
            )
    except (EmbedderError, VerifierError, ImportFailed) as error:
        raise SettingsError(str(error)) from None
    if plot is not None:
        with writing(plot):
            _plot(result, plot)
    if as_json:
        print_json(result.document())
    else:
        _render(result)


def _render(result: "Calibration") -> None:
    for name, curve in result.curves.items():
        kept = (result.default[name], result.recommended[name])
        shown = [point for place, point in enumerate(curve) if place % 5 == 0 or point.level in kept]
        columns = ["level#", "served#", "hit rate#", "95%#", "wrong#", "95%#"]
        print_table(columns, map(_row, shown), title=name)
        level = result.recommended[name]
        advice = "no level is known to keep" if level is None else f"level {level} keeps"
        typer.echo(f"{advice} the wrong share within {percent(result.target_error)}; in use: {result.default[name]}\n")
    typer.echo(f"{result.pairs:,} pairs, {result.same:,} of them the same")


def _row(point: "Point") -> list[object]:
    wrong = "-" if point.wrong_share is None else percent(point.wrong_share)
    return [
        f"{point.level:.4g}",
        point.served,
        percent(point.hit_rate),
        "-".join(percent(end) for end in point.hit_interval),
        wrong,
        "-".join(percent(end) for end in point.wrong_interval),
    ]


def _plot(result: "Calibration", path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in result.curves.items():
        served = [point for point in curve if point.served]
        rates, wrong = [point.hit_rate for point in served], [point.wrong_share or 0.0 for point in served]
        (line,) = axes.plot(rates, wrong, label=name)
        low, high = zip(*(point.wrong_interval for point in served), strict=True) if served else ((), ())
        axes.fill_between(rates, low, high, color=line.get_color(), alpha=0.15)
    axes.axhline(result.target_error, color="grey", linewidth=1, label="target")
    axes.set_xlabel("share of the same pairs that are served")
    axes.set_ylabel("share of what is served that is wrong")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
