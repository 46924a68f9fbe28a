"""kvproxy lint"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.analyse.options import (
    DEMO_TOKENIZER_NOTE,
    BlockSize,
    Log,
    LogModel,
    Tokenizer,
    load_tokenizer,
)
from kvproxy.commands.command import command
from kvproxy.commands.formatting import one_line, percent
from kvproxy.commands.options import Data
from kvproxy.commands.output import Output, print_note, progress_bar

if TYPE_CHECKING:
    from kvproxy.offline.lint import EditSaving, FamilyReport, LintReport
    from kvproxy.offline.lint_baseline import SharingRegression


@command
def lint(
    log: Log,
    tokenizer: Tokenizer = None,
    block_size: BlockSize = 16,
    pool: Annotated[
        int | None, typer.Option(help="Blocks of the engine's pool.", min=2, show_default="unlimited")
    ] = None,
    top: Annotated[int, typer.Option(help="Maximum number of families; 0 shows all.", min=0)] = 10,
    baseline: Annotated[Path | None, typer.Option(help="Compare with this file, or create it.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Overwrite the baseline.")] = False,
    edits: Annotated[Path | None, typer.Option(help="Write the suggested edits into this file as settings.")] = None,
    tolerance: Annotated[float, typer.Option(help="Accepted decrease of a family's share.", min=0, max=1)] = 0.01,
    model: LogModel = "model",
    data: Data = None,
) -> Output:
    """Find text that prevents prompts from sharing blocks.

    Typical causes are a date, an id or a counter near the beginning. Requests with the same beginning form a family. For each
    family, lint reports the first changing spans, the recomputed tokens, and the savings of removing or moving each span.

    The exit code is 1 if a family shares less than in the baseline, for use in CI.

    Example: kvproxy lint requests.jsonl --tokenizer ./model --baseline prefixes.json
    """
    import asyncio

    from kvproxy.commands.files import check_writable, explain_write_errors, read_text
    from kvproxy.offline.lint import lint as run
    from kvproxy.offline.lint_baseline import find_regressions, read_baseline, write_baseline
    from kvproxy.offline.request_log import read_log
    from kvproxy.settings import load_settings

    check_writable(edits)
    check_writable(baseline)
    settings, loaded = load_settings(data=data), load_tokenizer(tokenizer)
    before = read_baseline(baseline) if baseline is not None and baseline.exists() and not update else None
    content = read_log(log, read_text(log), model)
    with progress_bar("reading prompts") as progress:
        found = asyncio.run(run(content.requests, settings, loaded, block_size, pool, progress))
    regressions = find_regressions(before, found.families, tolerance) if before is not None else []
    if baseline is not None and before is None:
        with explain_write_errors(baseline):
            write_baseline(baseline, found.families)
    if edits is not None:
        with explain_write_errors(edits):
            edits.write_text(found.edits_as_toml())

    def show() -> None:
        _print(found, regressions, top)
        if tokenizer is None:
            print_note(DEMO_TOKENIZER_NOTE)

    return Output(_document(found, regressions), show, exit_code=1 if regressions else 0)


def _print(found: "LintReport", regressions: "list[SharingRegression]", top: int) -> None:
    families = [report for report in found.families if len(report.family.members) > 1]
    for report in families[: top or None]:
        _print_family(report)
    if any(report.savings for report in families):
        typer.echo("write these edits as settings with --edits FILE; kvproxy serve applies them to requests")
    alone = len(found.families) - len(families)
    if alone:
        typer.echo(f"{alone:,} requests share their beginning with no other request")
    if top and len(families) > top:
        typer.echo(f"{len(families) - top:,} smaller families are not shown: use --top 0")
    if found.unread:
        typer.echo(f"{found.unread:,} prompts contain more than text and were skipped")
    for regression in regressions:
        print_note(_regression_sentence(regression))


def _print_family(report: "FamilyReport") -> None:
    members = len(report.family.members)
    head = one_line(report.family.head)[:70]
    typer.echo(f'{members:,} requests to {report.family.model} that begin with "{head}"')
    typer.echo(
        f"  {report.prompt_tokens:,} prompt tokens, {percent(report.share)} reused;"
        f" {report.shared_blocks:,} shared blocks at the beginning (median)"
    )
    for saving in report.savings:
        _print_saving(report, saving)
    if not report.savings:
        typer.echo("  no changing text at the beginning")


def _print_saving(report: "FamilyReport", saving: "EditSaving") -> None:
    from kvproxy.offline.changed_spans import describe

    place = ", ".join(map(one_line, describe(saving.span)))
    stripped, moved = (percent(tokens / report.prompt_tokens) for tokens in (saving.stripped, saving.moved))
    typer.echo(f"  {place}: {saving.changed:,} times")
    recomputed = max(saving.stripped, saving.moved) - report.reused
    if saving.edit.action == "sort-tools":
        typer.echo(f"    {recomputed:,} recomputed tokens; sorted tools: {stripped} reused")
    else:
        typer.echo(
            f"    {recomputed:,} recomputed tokens; stripped: {stripped} reused, moved to the end: {moved} reused"
        )


def _regression_sentence(regression: "SharingRegression") -> str:
    before, now = regression.before, regression.now
    if now is None:
        return f'no request begins with "{before.head}" any more: use --update to overwrite the baseline'
    return (
        f'requests that begin with "{before.head}" reused {percent(before.share)}, now {percent(now.share)}'
        f" ({before.shared_blocks:,} blocks, now {now.shared_blocks:,})"
    )


def _document(found: "LintReport", regressions: "list[SharingRegression]") -> dict[str, Any]:
    from dataclasses import asdict

    from kvproxy.offline.lint_baseline import sharing_of

    families = []
    for report in found.families:
        spans = [
            asdict(saving.span)
            | {"changed": saving.changed, "stripped": saving.stripped, "moved": saving.moved}
            | {"edit": saving.edit.model_dump(exclude_defaults=True)}
            for saving in report.savings
        ]
        sharing = asdict(sharing_of(report)) | {"requests": len(report.family.members)}
        families.append(sharing | {"prompt_tokens": report.prompt_tokens, "reused": report.reused, "spans": spans})
    return {
        "block_size": found.block_size,
        "unread": found.unread,
        "families": families,
        "worse": [asdict(regression) for regression in regressions],
    }
