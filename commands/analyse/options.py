"""Options and output that the commands on logs have in common."""

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from kvproxy.commands.formatting import Formatted
from kvproxy.commands.output import print_note
from kvproxy.commands.tables import Row, table_texts
from kvproxy.telemetry.printable_text import escape_controls
from kvproxy.units import format_line_numbers, plural

_LISTED_ERRORS = 5

if TYPE_CHECKING:
    from kvproxy.analyse.log_files import LogFiles
    from kvproxy.analyse.report import Report, Source, Table
    from kvproxy.analyse.request_log import RequestLog

Logs = Annotated[
    list[Path],
    Argument(
        help="Requests, batches, logs, exports, or transcripts: files, folders, or - for stdin.", show_default=False
    ),
]
Tokenizer = Annotated[str | None, Option(help="Folder or Hugging Face id of the tokenizer.", show_default="demo")]
DEFAULT_BLOCK_SIZE = 16
OF_SESSIONS = "with transcripts or --sessions"
BlockSize = Annotated[int, Option(help="Tokens per block of the engine's prefix cache.", min=1)]
FormatOption = Annotated[
    str | None, Option("--format", help="Format of the file, such as litellm; prompts: one prompt per line.")
]
Column = Annotated[str | None, Option("--column", help="Column or field with a question; each one becomes a request.")]
StrictOption = Annotated[
    bool, Option("--strict", help="Fail if a row, a cell, a column of money, or a file is left out.")
]
LogModel = Annotated[str, Option("--model", help="Model of requests without a model.")]


@contextlib.contextmanager
def log_files(logs: Sequence[Path], *, with_transcripts: bool) -> Iterator["LogFiles"]:
    """Yield the files at paths, also of stdin (`-`) or of folders. Raises NotFound for folders without any file."""
    from kvproxy.analyse.log_files import find_log_files
    from kvproxy.commands.files import reread, shown_name

    with contextlib.ExitStack() as copies:
        paths = {copies.enter_context(reread(log)): shown_name(log) for log in dict.fromkeys(logs)}
        yield find_log_files(paths, with_transcripts=with_transcripts)


def read_requests(
    files: "LogFiles",
    model: str,
    format: str | None,
    tokenizer: str | None = None,
    column: str | None = None,
    *,
    reads_usage: bool = False,
    for_bill: bool = False,
    strict: bool = False,
) -> "RequestLog":
    """Read the logs, and report on stderr their formats and skipped rows. Raises KvproxyError.

    With `strict`, any part of the input that is left out raises it, too. With `reads_usage`, the tokens are those of the
    responses, and no tokenizer counts them. With `for_bill`, read usage without prompts, too.
    """
    from kvproxy.analyse.log_files import LogFile, read_logs
    from kvproxy.analyse.request_log import RequestLog, read_log
    from kvproxy.commands.files import read_text

    known_rows = set[int]()

    def read(file: LogFile) -> RequestLog:
        text = read_text(file.path, file.name)
        return read_log(
            file.name,
            text,
            model,
            format=format,
            column=column,
            known_rows=known_rows,
            for_bill=for_bill,
            reads_facts=True,
            with_outputs=len(files.logs) > 1,
        )

    log = read_logs(files, read, for_bill=for_bill)
    for line in describe_rows(log) if reads_usage else describe_log(log, tokenizer):
        print_note(line)
    print_left_out(files)
    if strict:
        reject_incomplete([*_lost_parts(log), *files.describe_left_out()])
    return log


def reject_incomplete(parts: Sequence[str]) -> None:
    """Raise InvalidRequest, for `--strict`, if a part of the input is left out."""
    from kvproxy.errors import InvalidRequest

    if parts:
        raise InvalidRequest(f"--strict: {'; '.join(parts)}: correct the input or the prices, or leave out --strict")


def _lost_parts(log: "RequestLog") -> Iterator[str]:
    """Yield what is left out of a log, without the rows that no bill and no replay needs, such as failed requests."""
    from kvproxy.analyse.log_formats.pages import unfinished_pages
    from kvproxy.analyse.log_formats.rows import LOST_CAUSES

    lost = len(log.errors) + sum(len(rows) for cause, rows in log.skipped.items() if cause.startswith(LOST_CAUSES))
    if lost:
        yield f"{plural(lost, 'row')} unread"
    if cells := sum(map(len, log.unreadable.values())):
        yield f"{plural(cells, 'cell')} unread"
    if log.unread_amounts:
        yield f"columns unread: {', '.join(log.unread_amounts)}"
    for page in unfinished_pages(log.pages):
        yield f"no further pages of {page.file}"


def print_left_out(files: "LogFiles") -> None:
    for line in files.describe_left_out():
        print_note(escape_controls(line))


def describe_log(log: "RequestLog", tokenizer: str | None) -> list[str]:
    """Return sentences about the format of a log, its requests, and what is not read or not counted."""
    name = tokenizer or "the demo model's tokenizer: give --tokenizer for your model"
    tools = "; tools and the arguments of their calls count" if log.has_tools else ""
    return [*describe_rows(log), f"tokens are counted with {name}{tools}"]


def describe_rows(log: "RequestLog") -> list[str]:
    """Return sentences about the format of a log, its requests, and its skipped rows."""
    counts = [plural(log.rows, "row")]
    if log.num_requests is not None:
        counts.append(plural(log.num_requests, "request"))
    if not log.is_usage_report:
        counts += [plural(log.num_conversations, "conversation"), f"{log.num_responses:,} with a response"]
    from kvproxy.analyse.log_formats.pages import unfinished_pages

    lines = [f"read as {log.format}: {', '.join(counts)}"]
    if without := log.num_skipped + len(log.errors):
        malformed = f"{len(log.errors):,} malformed" if log.errors else ""
        causes = ", ".join(filter(None, (log.describe_skipped(), malformed)))
        lines.append(f"skipped {plural(without, 'row')} without a request: {causes}")
    if amounts := log.unread_amounts:
        lines.append(
            f"columns that sound like tokens or money, not read: {', '.join(amounts)}; docs/logs.md lists the known headings, and"
            " a cost needs its currency"
        )
    if others := log.ignored_fields - set(amounts):
        hint = "; --by column:NAME groups by one" if log.is_usage_report else ""
        lines.append(f"no fields of a request, not read: {', '.join(sorted(others))}{hint}")
    for heading, numbers in log.unreadable.items():
        lines.append(
            f"{plural(len(numbers), 'row')} with unreadable {heading} ({format_line_numbers(numbers)}): it counts as unknown;"
            " write 1200, 12.50, or 2026-11-21"
        )
    lines += [
        f"the amounts are those of {report.column}; other columns of money, not read: {', '.join(report.other_columns)}"
        for report in log.costs
        if report.other_columns
    ]
    if log.shared_days:
        day, files = next(iter(log.shared_days.items()))
        more = f" and {plural(len(log.shared_days) - 1, 'more day')}" if len(log.shared_days) > 1 else ""
        lines.append(
            f"{' and '.join(files)} have usage of one model, or costs of one item, on {day}{more}: they count twice if these"
            " reports overlap"
        )
    for page in unfinished_pages(log.pages):
        start = f", from page={page.next_page} on" if page.next_page else ""
        lines.append(
            f"incomplete: {page.file} says that further pages follow it (has_more), and they are not here: give them, too{start}"
        )
    if log.num_without_model and log.is_usage_report:
        lines.append("some sums name no model, so they have no price: group the report by model (group_by)")
    elif log.num_without_model:
        names = "names" if log.num_without_model == 1 else "name"
        lines.append(
            f"{plural(log.num_without_model, 'request')} {names} no model: they count as requests for one model (--model)"
        )
    if log.other_apis:
        lines.append(
            f"{plural(log.other_apis.total(), 'response')} of another API than the request"
            f" ({', '.join(sorted(log.other_apis))}): they are not stored, so their requests have no hits;"
            " give the route as url or path, and the request and its response in the form of one API"
        )
    lines += [f"line {error.line}: {error.message}" for error in log.errors[:_LISTED_ERRORS]]
    if len(log.errors) > _LISTED_ERRORS:
        lines.append(f"{len(log.errors) - _LISTED_ERRORS:,} more rows are malformed")
    return lines


def log_document(log: "RequestLog", tokenizer: str | None) -> dict[str, Any]:
    from kvproxy.analyse.log_formats.pages import unfinished_pages

    return {
        "format": log.format,
        "rows": log.rows,
        "requests": len(log.requests),
        "conversations": log.num_conversations,
        "responses": log.num_responses,
        "skipped": {cause: len(rows) for cause, rows in log.skipped.items()},
        "malformed": [asdict(error) for error in log.errors],
        "requests_without_model": log.num_without_model,
        "unreadable": {heading: len(numbers) for heading, numbers in log.unreadable.items()},
        "shared_days": log.shared_days,
        "unfinished_pages": [page.file for page in unfinished_pages(log.pages)],
        "ignored_fields": sorted(log.ignored_fields),
        "responses_of_other_apis": dict(log.other_apis),
        "tokenizer": tokenizer or "demo",
        "tools_count": log.has_tools,
    }


def report_source(
    files: Sequence[Path],
    period: tuple[float, float] | None,
    *,
    requests: int,
    tokens: int,
    currency: str | None,
    read_as: Sequence[str] = (),
) -> "Source":
    """Return the facts about an analysis by the running command."""
    from kvproxy import __version__
    from kvproxy.analyse.report import Source

    command = shlex.join(["kvproxy", *sys.argv[1:]])
    names = ", ".join("stdin" if str(file) == "-" else str(file.absolute()) for file in files)
    return Source(command, __version__, names, read_as, period, requests, tokens, currency)


def report_table(rows: Sequence[Row], title: str) -> "Table":
    """Return a table of a report with the cells of a printed table."""
    from kvproxy.analyse.report import Table

    names, cells = table_texts(rows)
    return Table(names, cells, title)


def save_report(report: "Report", path: Path) -> None:
    from kvproxy.analyse.report import write_report
    from kvproxy.commands.files import explain_write_errors

    with explain_write_errors(path):
        write_report(report, path)


def reject_options(values: Mapping[str, tuple[object, object]], mode: str) -> None:
    """Raise BadParameter if an option without effect has another value than its default.

    `values`: value and default of each option by name.
    """
    names = [name for name, (value, default) in values.items() if value != default]
    if names:
        raise typer.BadParameter(f"{', '.join(names)} cannot be used {mode}")


def format_pool_size(blocks: int, block_size: int) -> Formatted:
    """Format a pool size; programs receive the tokens."""
    return Formatted(f"{plural(blocks * block_size, 'token')} ({plural(blocks, 'block')})", blocks * block_size)


def parse_sizes(blocks: str | None, minimum: int) -> list[int] | None:
    """Parse pool sizes in blocks, such as `1000,5000`. Raises BadParameter for a size below `minimum`."""
    if blocks is None:
        return None
    try:
        sizes = [int(size) for size in blocks.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < minimum:
        raise typer.BadParameter(f"--blocks takes integers of at least {minimum}, such as 1000,5000, not {blocks!r}")
    return sizes
