"""kvproxy lint: what in a log's prompts keeps them from sharing their beginnings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.estimate import BlockSize, Log, Tokenizer, prepared
from kvproxy.commands.options import Data, Json
from kvproxy.commands.output import percent, print_json, shown_progress

if TYPE_CHECKING:
    from kvproxy.offline.lint import FamilyReport, Lint, Saving
    from kvproxy.offline.lint_baseline import Worse


def lint(
    log: Log,
    tokenizer: Tokenizer = None,
    block_size: BlockSize = 16,
    pool: Annotated[
        int | None, typer.Option(help="Blocks of the engine's pool.", min=2, show_default="endless")
    ] = None,
    top: Annotated[int, typer.Option(help="Show so many families, the largest first; 0 shows all.", min=0)] = 10,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Compare with this file; it is written where it does not exist.", show_default=False),
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Write the baseline anew.")] = False,
    edits: Annotated[
        Path | None,
        typer.Option(help="Write the changes that are worth it into this file, as settings.", show_default=False),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="How much smaller a family's share may be.", min=0, max=1)] = 0.01,
    model: Annotated[str, typer.Option(help="Model of requests that name none.")] = "model",
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Find the span that spoils the prefix cache: a date, an id or a counter near the beginning of prompts.

    Requests that begin alike are a family. For each, the first span that keeps changing is named, with the prompt tokens
    that are computed again because of it, and what would be saved by stripping it or by moving it to the last message.

    The exit code is 1 where a family shares less than in the baseline: a test for CI.

    Example: kvproxy lint requests.jsonl --tokenizer ./model --baseline prefixes.json
    """
    import asyncio

    from kvproxy.commands.files import check_place, read_text, writing
    from kvproxy.offline.lint import lint as run
    from kvproxy.offline.lint_baseline import read_baseline, worse, write_baseline
    from kvproxy.offline.request_log import read_log

    check_place(edits)
    check_place(baseline)
    settings, spelling = prepared(data, tokenizer)
    before = read_baseline(baseline) if baseline is not None and baseline.exists() and not update else None
    reading = read_log(log, read_text(log), model)
    with shown_progress("reading prompts") as progress:
        found = asyncio.run(run(reading.requests, settings, spelling, block_size, pool, progress))
    less = worse(before, found.families, tolerance) if before is not None else []
    if baseline is not None and before is None:
        with writing(baseline):
            write_baseline(baseline, found.families)
    if edits is not None:
        with writing(edits):
            edits.write_text(_settings(found))
    if as_json:
        print_json(_document(found, less))
    else:
        _render(found, less, top)
        if tokenizer is None:
            typer.echo(
                "tokens are counted with the demo model's tokenizer: give --tokenizer for your own model", err=True
            )
    if less:
        raise typer.Exit(1)


def _settings(found: "Lint") -> str:
    """The edits of all families as a part of kvproxy.toml; JSON writes texts as TOML reads them."""
    import json

    from kvproxy.offline.edits import moving

    lines = ["# Found by kvproxy lint. Which of these spans matter to the answers is yours to say: strip forgets them."]
    savings = [(report, saving) for report in found.families for saving in report.savings]
    for number, (report, saving) in enumerate(savings, 1):
        # A span that is moved is still told to the model.
        edit = saving.edit if saving.edit.action == "sort-tools" else moving(saving.edit)
        told = edit.model_dump(exclude_defaults=True) | {"name": f"{edit.name}-{number}", "model": report.family.model}
        lines += ["", "[[edits]]", *(f"{name} = {json.dumps(value)}" for name, value in told.items())]
    return "\n".join(lines) + "\n"


def _render(found: "Lint", less: "list[Worse]", top: int) -> None:
    shown = [report for report in found.families if len(report.family.members) > 1]
    for report in shown[: top or None]:
        _family(report)
    if any(report.savings for report in shown):
        typer.echo("--edits FILE writes the changes as settings, which kvproxy serve makes on the way to the engine")
    alone = len(found.families) - len(shown)
    if alone:
        typer.echo(f"{alone:,} requests begin like no other")
    if top and len(shown) > top:
        typer.echo(f"{len(shown) - top:,} smaller families are left out: --top 0 shows all")
    if found.unread:
        typer.echo(f"{found.unread:,} prompts hold more than text and are not looked at")
    for each in less:
        typer.echo(_worse(each), err=True)


def _family(report: "FamilyReport") -> None:
    from kvproxy.commands.tables import one_line

    members = len(report.family.members)
    typer.echo(f'{members:,} requests of {report.family.model} that begin like "{one_line(report.family.head)[:70]}"')
    typer.echo(
        f"  {report.prompt_tokens:,} prompt tokens, {percent(report.share)} reused;"
        f" {report.shared_blocks:,} blocks at the beginning (median)"
    )
    for saving in report.savings:
        _saving(report, saving)
    if not report.savings:
        typer.echo("  nothing that keeps changing spoils the beginning")


def _saving(report: "FamilyReport", saving: "Saving") -> None:
    from kvproxy.commands.tables import one_line
    from kvproxy.offline.changed_spans import described

    where = ", ".join(one_line(part) for part in described(saving.span))
    gained = [percent(tokens / report.prompt_tokens) for tokens in (saving.stripped, saving.moved)]
    typer.echo(f"  {where}: {saving.changed:,} times")
    lost = max(saving.stripped, saving.moved) - report.reused
    if saving.edit.action == "sort-tools":
        typer.echo(f"    {lost:,} tokens are computed again for it; tools in one order would reuse {gained[0]}")
        return
    typer.echo(
        f"    {lost:,} tokens are computed again for it; stripped, {gained[0]} would be reused,"
        f" at the end of the last message {gained[1]}"
    )


def _worse(each: "Worse") -> str:
    if each.now is None:
        return f'no request begins like "{each.before.head}" any more: --update writes the baseline anew'
    return (
        f'requests that begin like "{each.before.head}" reused {percent(each.before.share)} and now reuse'
        f" {percent(each.now.share)} ({each.before.shared_blocks:,} and {each.now.shared_blocks:,} blocks)"
    )


def _document(found: "Lint", less: "list[Worse]") -> dict[str, Any]:
    from dataclasses import asdict

    from kvproxy.offline.lint_baseline import shared_of

    families = []
    for report in found.families:
        savings = [
            asdict(saving.span)
            | {"changed": saving.changed, "stripped": saving.stripped, "moved": saving.moved}
            | {"edit": saving.edit.model_dump(exclude_defaults=True)}
            for saving in report.savings
        ]
        told = asdict(shared_of(report)) | {"requests": len(report.family.members)}
        families.append(told | {"prompt_tokens": report.prompt_tokens, "reused": report.reused, "spans": savings})
    return {
        "block_size": found.block_size,
        "unread": found.unread,
        "families": families,
        "worse": [asdict(each) for each in less],
    }
