"""`kvproxy lint`: which text prevents prompts from sharing blocks?"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Option

from kvproxy.commands.analyse.options import (
    DEFAULT_BLOCK_SIZE,
    OF_SESSIONS,
    BlockSize,
    FormatOption,
    LogModel,
    Logs,
    Tokenizer,
    format_pool_size,
    log_document,
    log_files,
    read_requests,
    reject_options,
)
from kvproxy.commands.analyse.session_report import SessionsOption, print_losses, read_session_report
from kvproxy.commands.formatting import amount_text, one_line, percent
from kvproxy.commands.options import WRITES, Data, load_settings
from kvproxy.commands.output import Output, print_note, print_text, progress_bar
from kvproxy.demo import DEMO
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.analyse.lint import EditSaving, FamilyReport, LintReport

_HEAD_CHARACTERS = 80


def lint(
    logs: Logs,
    tokenizer: Tokenizer = None,
    block_size: BlockSize = DEFAULT_BLOCK_SIZE,
    top: Annotated[int, Option(help="Maximum number of families or sessions; 0 shows all.", min=0)] = 10,
    edits: Annotated[Path | None, Option(help="Write the suggested edits into this file as settings."), WRITES] = None,
    min_reuse: Annotated[
        float | None,
        Option(help="Exit with 1 if a smaller share of the prompt tokens is reused, such as 0.8.", min=0, max=1),
    ] = None,
    sessions: SessionsOption = False,
    format: FormatOption = None,
    model: LogModel = "model",
    data: Data = None,
) -> Output:
    """Find text that prevents prompts from sharing blocks.

    Typical causes are a date, an id or a counter near the beginning. Requests with the same beginning form a family. For each
    family, lint reports the first texts that differ, and the tokens to compute after each text is removed or moved. The
    edits of prompts in the kvproxy.toml of the data folder are applied first.

    For transcripts of agents (Claude Code, Codex, opencode, or traces of WEKA), it reports where the sessions
    lost cached tokens.

    Example: kvproxy lint requests.jsonl --tokenizer ./model --edits edits.toml

    Example: kvproxy lint requests.jsonl --min-reuse 0.8

    Example: kvproxy lint ~/.claude/projects
    """
    import asyncio

    from kvproxy.analyse.lint import lint as run
    from kvproxy.analyse.log_tokenizer import load_log_tokenizer
    from kvproxy.commands.files import check_writable, explain_write_errors

    with log_files(logs, with_transcripts=format is None) as files:
        settings = load_settings(data=data)
        report = read_session_report(files, sessions, model, settings, format)
        if report is not None:
            if edits is not None:
                raise BadParameter("--edits needs a log of whole prompts, which transcripts and --sessions do not read")
            reject_options(
                {"--tokenizer": (tokenizer, None), "--block-size": (block_size, DEFAULT_BLOCK_SIZE)}, OF_SESSIONS
            )
            code = _check_reuse(report.reuse, min_reuse)
            return Output(asdict(report) | {"reuse": report.reuse}, lambda: print_losses(report, top), code)
        check_writable(edits)
        loaded = load_log_tokenizer(tokenizer)
        content = read_requests(files, model, format, tokenizer)
    with progress_bar("reading prompts") as progress:
        lint_report = asyncio.run(
            run(
                content.requests,
                settings,
                loaded,
                block_size,
                progress,
                is_models_tokenizer=tokenizer not in (None, DEMO),
            )
        )
    if edits is not None:
        with explain_write_errors(edits):
            edits.write_text(lint_report.edits_as_toml())
    savings = [saving for report in lint_report.families for saving in report.savings]

    def show() -> None:
        _print_report(lint_report, top, settings.journal.currency)
        if edits is not None:
            print_text(_written_edits(savings, edits))
        elif savings:
            print_text("write these edits as settings with --edits FILE; kvproxy serve applies them to requests")

    more = {"log": log_document(content, tokenizer), "reuse": lint_report.reuse, "currency": settings.journal.currency}
    document = _json_document(lint_report) | more
    return Output(document, show, _check_reuse(lint_report.reuse, min_reuse))


def _written_edits(savings: "Sequence[EditSaving]", file: Path) -> str:
    if not savings:
        return f"wrote no edit to {file}: no edit saves tokens"
    has_text = any(saving.removes_text for saving in savings)
    meaning = "; the action 'move' keeps the text, which 'strip' removes" if has_text else ""
    return f"wrote {plural(len(savings), 'edit')} to {file}{meaning}"


def _check_reuse(reuse: float, least: float | None) -> int:
    """Return the exit code: 1, with a note, if the reuse is below `--min-reuse`."""
    if least is None or reuse >= least:
        return 0
    print_note(f"{percent(reuse)} of the prompt tokens are reused, less than --min-reuse {percent(least)}")
    return 1


def _print_report(lint_report: "LintReport", top: int, currency: str) -> None:
    families = [report for report in lint_report.families if len(report.family.members) > 1]
    for report in families[: top or None]:
        _print_family(report, lint_report.block_size, currency)
    alone = len(lint_report.families) - len(families)
    if alone:
        print_text(f"{alone:,} requests share their beginning with no other request")
    if top and len(families) > top:
        print_text(f"{len(families) - top:,} smaller families are not shown: use --top 0")
    if lint_report.untokenized:
        print_text(f"{lint_report.untokenized:,} prompts contain more than text and were skipped")


def _print_family(report: "FamilyReport", block_size: int, currency: str) -> None:
    members = len(report.family.members)
    head = one_line(report.family.head)[:70]
    print_text(f'{members:,} requests to {report.family.model} that begin with "{head}"')
    print_text(
        f"  {report.reuse.prompt_tokens:,} prompt tokens, {percent(report.reuse.share)} reused;"
        f" {format_pool_size(report.shared_blocks, block_size)} shared at the beginning (median)"
    )
    for saving in report.savings:
        _print_saving(report, saving)
        if (saved := saving.saved_money(report.price)) is not None:
            print_text(f"    saves {amount_text(saved)} {currency} of the input, if the provider caches it")
    if report.savings and report.without_money is not None:
        print_text(f"  {report.without_money}")
    if not report.savings:
        print_text("  no changing text at the beginning")


def _print_saving(report: "FamilyReport", saving: "EditSaving") -> None:
    requests = plural(saving.changed, "request")
    change = f"{saving.change} differs from the most similar earlier prompt in {requests}{saving.example}"
    print_text(f"  {one_line(change)}")
    computed = f"    {report.reuse.computed_tokens:,} computed tokens;"
    stripped, moved = (
        f"{reuse.computed_tokens:,} ({percent(reuse.share)} reused)" for reuse in (saving.stripped, saving.moved)
    )
    if saving.removes_text:
        print_text(f"{computed} stripped: {stripped}, moved to the end: {moved}")
    else:
        print_text(f"{computed} {'sorted' if saving.edit.action == 'sort-tools' else 'the same'} tools: {stripped}")
    print_text(f"    {saving.suggested.action}: {saving.reason}")


def _json_document(lint_report: "LintReport") -> dict[str, Any]:
    families = [
        {
            "model": report.family.model,
            "head": report.family.head[:_HEAD_CHARACTERS],
            "requests": len(report.family.members),
            "shared_blocks": report.shared_blocks,
            "billed_tokens": None if report.reuse.billed is None else report.reuse.billed.prompt_tokens,
            "without_money": report.without_money,
            **{name: getattr(report.reuse, name) for name in ("share", "prompt_tokens", "reused")},
            "spans": [
                {**asdict(saving.span), "changed": saving.changed}
                | {"stripped": saving.stripped.reused, "stripped_computed": saving.stripped.computed_tokens}
                | {"moved": saving.moved.reused, "moved_computed": saving.moved.computed_tokens}
                | {"edit": saving.edit.model_dump(exclude_defaults=True)}
                | {"suggested": saving.suggested.action, "reason": saving.reason}
                | {"saved_money": saving.saved_money(report.price)}
                for saving in report.savings
            ],
        }
        for report in lint_report.families
    ]
    return {"block_size": lint_report.block_size, "untokenized": lint_report.untokenized, "families": families}
