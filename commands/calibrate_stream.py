"""kvproxy calibrate --stream: questions replayed in their order through each policy."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvproxy.commands.files import writing
from kvproxy.commands.output import percent, print_json, print_table, shown_progress

if TYPE_CHECKING:
    from kvproxy.index.evaluation.streams import Report
    from kvproxy.index.models.verifier import Verifier
    from kvproxy.index.policies.checked import CheckedPolicy
    from kvproxy.index.policies.learned.policy import LearnedPolicy
    from kvproxy.settings import CacheSettings


def replay_stream(
    path: Path,
    max_error: float,
    judge: str,
    judge_error: float,
    orders: int,
    embedder: str | None,
    verifier: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Replay a stream, and print, plot or write what came of it; see the options of `kvproxy calibrate`.

    Raises:
        NotFound: there is no such file.
        SettingsError: the file or a setting cannot be used; the message names the fix.
    """
    from kvproxy.errors import NotFound, SettingsError
    from kvproxy.index.errors import EmbedderError, ImportFailed, VerifierError
    from kvproxy.index.evaluation.streams import make_stream, measure, read_stream
    from kvproxy.index.models.embedder import load_embedder
    from kvproxy.index.models.verifier import load_verifier
    from kvproxy.settings import load_settings

    if not path.is_file():
        raise NotFound(f"no file {path}")
    if judge not in ("equality", "similarity"):
        raise SettingsError(f"--judge {judge}: give equality or similarity")
    settings = load_settings(embedder=embedder, cache={"verifier": verifier} if verifier else None)
    cache = settings.cache
    try:
        lines = read_stream(path)
        model = load_embedder(settings.embedder)
        reads_both = None if cache.verifier == "none" else load_verifier(cache.verifier, model.name)
        with shown_progress("embedding") as progress:
            stream = make_stream(lines, model, cache.judge_similarity if judge == "similarity" else None, progress)
        with shown_progress("replaying") as progress:
            report = measure(
                stream,
                lambda: _learned(cache, reads_both, max_error),
                None if reads_both is None else _checked(cache, reads_both),
                max_error,
                orders=orders,
                judge_error=judge_error,
                progress=lambda what, share: progress(share),
            )
    except (EmbedderError, VerifierError, ImportFailed) as error:
        raise SettingsError(str(error)) from None
    if plot is not None:
        with writing(plot):
            _plot(report, plot)
    if as_json:
        print_json(report.document())
    else:
        _render(report)


def _checked(cache: "CacheSettings", verifier: "Verifier") -> "CheckedPolicy":
    from kvproxy.index.policies.checked import CheckedPolicy
    from kvproxy.index.policies.guards import GUARDS
    from kvproxy.settings import LEAST_SIMILARITY

    return CheckedPolicy(verifier, cache.level, LEAST_SIMILARITY["checked"], GUARDS if cache.guards else ())


def _learned(cache: "CacheSettings", verifier: "Verifier | None", max_error: float) -> "LearnedPolicy":
    from kvproxy.index.observations import MemoryLog
    from kvproxy.index.policies.guards import GUARDS
    from kvproxy.index.policies.learned.policy import LearnedPolicy
    from kvproxy.settings import LEAST_SIMILARITY

    guards = GUARDS if cache.guards else ()
    checked = None if verifier is None else _checked(cache, verifier)
    return LearnedPolicy(MemoryLog(), checked, max_error, LEAST_SIMILARITY["learned"], guards)


def _render(report: "Report") -> None:
    rows = [
        (
            name if name != "threshold" or report.level is None else f"threshold {report.level}",
            percent(found.hit_rate),
            percent(found.wrong_share),
            percent(found.worst),
        )
        for name, found in report.outcomes.items()
    ]
    print_table(["policy", "hit rate#", "wrong#", "worst#"], rows, title=f"{report.requests:,} requests")
    typer.echo(
        f"learned was asked for at most {percent(report.max_error)} wrong, and vouches for {percent(report.bound)};"
        " threshold is the best fixed cosine, known only afterwards; worst is the largest wrong share from the 500th answer"
        " served on."
    )
    if report.orders:
        told = report.document()["orders"]
        typer.echo(
            f"{told['count']} other orders: hit rate {percent(told['hit_rate'])}, wrong {percent(told['wrong_share'])}"
            f" (medians), worst {percent(told['worst'])}; within the bound in {told['within']}."
        )


def _plot(report: "Report", path: Path) -> None:
    from matplotlib.figure import Figure

    from kvproxy.index.evaluation.streams import curve

    figure = Figure(figsize=(8, 7), layout="constrained")
    hits, errors = figure.subplots(2, 1, sharex=True)
    for name, found in report.outcomes.items():
        points = curve(found)
        requests = [point[0] for point in points]
        hits.plot(requests, [served / count for count, served, _ in points], label=name)
        errors.plot(requests, [wrong / max(1, served) for _, served, wrong in points], label=name)
    errors.axhline(report.max_error, color="grey", linewidth=1, label="max_error")
    hits.set_ylabel("share of the requests served so far")
    errors.set_ylabel("share of what was served that was wrong")
    errors.set_xlabel("requests")
    for axes in (hits, errors):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)
