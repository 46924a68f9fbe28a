"""kvproxy calibrate: what each policy would serve of labelled pairs, and the level for a target error."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.options import Json
from commands.output import percent, print_json, print_table

if TYPE_CHECKING:
    from index.calibrate import Calibration, Point


def calibrate(
    pairs: Annotated[Path, typer.Argument(help='JSON lines {"a", "b", "same"}, gzipped where it ends in .gz.')],
    target_error: Annotated[
        float, typer.Option(help="Largest share of wrong answers among those served.", min=0.0, max=1.0)
    ] = 0.05,
    embedder: Annotated[str | None, typer.Option(help="As for serve.", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the curves as .png or .svg.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Measure hits and wrong answers at each similarity level on labelled pairs, and recommend a level.

    Example: kvproxy calibrate pairs.jsonl.gz --target-error 0.02 --plot curves.svg
    """
    from index.calibrate import calibrate as measure
    from index.calibrate import read_pairs
    from index.embedder import load_embedder
    from index.errors import EmbedderError, ImportFailed
    from kvproxy.errors import NotFound, SettingsError
    from kvproxy.settings import load_settings

    if not pairs.is_file():
        raise NotFound(f"no file {pairs}")
    settings = load_settings(embedder=embedder)
    try:
        rows = list(read_pairs(pairs))
        if not rows:
            raise SettingsError(f"{pairs} holds no pairs")
        result = measure(
            rows,
            load_embedder(settings.embedder),
            default_level=settings.cache.threshold,
            target_error=target_error,
        )
    except (EmbedderError, ImportFailed) as error:
        raise SettingsError(str(error)) from None
    if plot is not None:
        _plot(result, plot)
    if as_json:
        print_json(result.document())
    else:
        _render(result)


def _render(result: "Calibration") -> None:
    for name, curve in result.curves.items():
        shown = [point for point in curve if _shown(point.level, result)]
        columns = ["level#", "served#", "hit rate#", "95%#", "wrong#", "95%#"]
        print_table(columns, map(_row, shown), title=name)
        level = result.recommended[name]
        advice = "no level is known to keep" if level is None else f"level {level} keeps"
        typer.echo(f"{advice} the wrong share within {percent(result.target_error)}; in use: {result.default_level}\n")
    typer.echo(f"{result.pairs:,} pairs, {result.same:,} of them the same")


def _shown(level: float, result: "Calibration") -> bool:
    """Every other level would do for people; those in use and recommended must be there."""
    return round(level * 1000) % 20 == 0 or level in (result.default_level, *result.recommended.values())


def _row(point: "Point") -> list[object]:
    wrong = "-" if point.wrong_share is None else percent(point.wrong_share)
    return [
        f"{point.level:.3f}",
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
