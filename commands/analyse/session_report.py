"""Prints the cost and the lost reuse of the sessions of a log, for `estimate`."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Option

from kvproxy.commands.analyse.options import print_left_out, read_requests, reject_incomplete
from kvproxy.commands.formatting import format_duration, logged_time, money, percent
from kvproxy.commands.journal.savings import advice_rows, ledger_rows, print_minor_changes
from kvproxy.commands.journal.spending import session_cost, unpriced_note
from kvproxy.commands.output import print_note, print_text, progress_bar
from kvproxy.commands.tables import Column, Row, print_table, text_column
from kvproxy.journal.sessions.changed_text import change_place
from kvproxy.journal.sessions.ledger import main_cause
from kvproxy.units import format_line_numbers, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvproxy.analyse.bills.reported_costs import CostReport
    from kvproxy.analyse.log_files import LogFiles
    from kvproxy.analyse.log_formats.log_format import LoggedRequest
    from kvproxy.analyse.session_report import SessionReport
    from kvproxy.analyse.simulate.trace_reader import TraceSession
    from kvproxy.analyse.turn_losses import TurnLoss
    from kvproxy.journal.sessions.spending_report import SpendingReport
    from kvproxy.settings import Settings
    from kvproxy.settings.journal import PriceSettings

SessionsOption = Annotated[
    bool, Option("--sessions", help="Report sessions by the usage in a log, as for transcripts.")
]
_SHOWN_CHANGES = 5
_SHOWN_FILES = 5


def with_prices(settings: "Settings", prices: "Mapping[str, PriceSettings] | None") -> "Settings":
    """Return the settings with `prices` instead of their own; unchanged for None."""
    if prices is None:
        return settings
    return settings.model_copy(update={"journal": settings.journal.model_copy(update={"prices": dict(prices)})})


def read_spending(
    files: "LogFiles",
    sessions: bool,
    model: str,
    settings: "Settings",
    format: str | None,
    by: str | None = None,
    since: float | None = None,
    until: float | None = None,
    as_model: str | None = None,
    *,
    strict: bool = False,
) -> "SpendingReport":
    """Report the cost of the requests in transcripts, and in logs with usage if `sessions`. Raises KvproxyError.

    Without `by`, requests are grouped by model, and reports of costs alone by their items. `since` and `until` select requests
    by their time in seconds since the epoch. With `as_model`, the report has the cost of the same tokens with this model, too.
    """
    from kvproxy.analyse.bills.logged_spending import report_spending
    from kvproxy.errors import InvalidRequest

    if not files.transcripts and not sessions:
        name = files.logs[0].name
        raise InvalidRequest(f"--by sums the usage in transcripts of agents; {name} is a log: give --sessions, too")
    with progress_bar("reading sessions") as progress:
        reading, reporting = _halves(progress)
        requests, traces, costs = _read_recorded(files, sessions, model, format, reading, for_bill=True, strict=strict)
        by = by or ("model" if requests or traces else "line_item")
        return report_spending(requests, traces, by, settings.journal, reporting, costs, since, until, as_model)


def read_session_report(
    files: "LogFiles",
    sessions: bool,
    model: str,
    settings: "Settings",
    format: str | None = None,
    *,
    strict: bool = False,
) -> "SessionReport | None":
    """Report the sessions in transcripts of agents, and in logs with usage if `sessions`. Raises KvproxyError.

    Return None if all files are logs, unless `sessions`.
    """
    from kvproxy.analyse.session_report import report_sessions
    from kvproxy.errors import InvalidRequest

    if not files.transcripts and not sessions:
        return None
    with progress_bar("reading sessions") as progress:
        reading, reporting = _halves(progress)
        requests, traces, _ = _read_recorded(files, sessions, model, format, reading, strict=strict)
        report = replace(report_sessions(requests, traces, settings.journal, reporting), files=len(files.transcripts))
    if not report.sessions:
        raise InvalidRequest("the files have no responses with usage, so the reuse of their sessions is unknown")
    return report


def _read_recorded(
    files: "LogFiles",
    sessions: bool,
    model: str,
    format: str | None,
    progress: Callable[[float], None],
    *,
    for_bill: bool = False,
    strict: bool = False,
) -> "tuple[list[LoggedRequest], list[TraceSession], list[CostReport]]":
    """Return the requests in order of time, the agent traces, and reports of costs. Notes name unread files and lines."""
    from kvproxy.analyse.transcripts import read_transcripts

    found = read_transcripts(files.transcripts, progress, files.leave_out_transcript)
    for file, lines in list(found.damaged.items())[:_SHOWN_FILES]:
        print_note(f"not JSON, and left out: {format_line_numbers(lines)} of {file}")
    if len(found.damaged) > _SHOWN_FILES:
        print_note(f"{len(found.damaged) - _SHOWN_FILES:,} more files have lines that are not JSON")
    if strict:
        reject_incomplete([f"unread lines of {file}" for file in found.damaged])
    if files.logs and sessions:
        logged = read_requests(files, model, format, reads_usage=True, for_bill=for_bill, strict=strict)
        requests = sorted([*found.requests, *logged.requests], key=lambda request: request.time or 0.0)
        return requests, found.traces, logged.costs
    for log in files.logs:
        files.leave_out(log.name, "no transcript; --sessions counts the usage in logs, too")
    print_left_out(files)
    if strict:
        reject_incomplete(list(files.describe_left_out()))
    return found.requests, found.traces, []


def _halves(progress: Callable[[float], None]) -> tuple[Callable[[float], None], Callable[[float], None]]:
    """Split the progress into that of reading the files, and that of the report."""
    return lambda share: progress(share / 2), lambda share: progress((1 + share) / 2)


def print_losses(report: "SessionReport", top: int) -> None:
    _print_sums(report)
    print_table(ledger_rows(report.ledger))
    if report.changed:
        print_table(
            {text_column("First change in"): region.region, "Turns#": region.turns, "Lost tokens#": region.tokens}
            for region in report.changed[:_SHOWN_CHANGES]
        )
    shown = report.sessions[: top or None]
    print_table(
        {
            Column("Session", digits=36, is_text=True): session.name or session.id,
            text_column("Model"): ", ".join(session.models),
            "Turns#": session.turns,
            "Input#": session.prompt_tokens,
            "Reused#": percent((session.reused_tokens or 0) / max(1, session.prompt_tokens)),
            "Lost most to": main_cause(session.lost, session.reused_tokens),
            "Longest pause#?": format_duration(round(session.longest_pause)),
            f"{report.ledger.currency}#": session_cost(session),
        }
        for session in shown
    )
    if len(report.sessions) > len(shown):
        print_text(f"{len(report.sessions) - len(shown):,} cheaper sessions are not shown: use --top 0")
    losses = report.losses[: top or None]
    if losses:
        print_table((_loss_row(loss, report.ledger.currency) for loss in losses), title="Turns that lost the most:")
    if len(report.losses) > len(losses):
        print_text(f"{len(report.losses) - len(losses):,} cheaper turns are not shown: use --top 0")
    _print_advice(report)
    _print_notes(report)


def _loss_row(loss: "TurnLoss", currency: str) -> Row:
    return {
        Column("Session", digits=36, is_text=True): loss.session,
        "Turn#": loss.turn,
        "Time": logged_time(loss.time),
        "Lost to": loss.cause,
        "Tokens#": loss.tokens,
        f"{currency}#": money(loss.lost_cost),
        "Pause#?": None if loss.pause is None else format_duration(round(max(0.0, loss.pause))),
        text_column("First change"): change_place(loss.region, loss.place),
    }


def print_costs(report: "SessionReport") -> None:
    _print_sums(report)
    cost, currency = report.cost, report.ledger.currency
    rows = [
        ("as logged", cost),
        ("without a cache", report.uncached),
        *((f"nothing lost to {row.result}", cost - row.cost) for row in report.ledger.rows if row.cost),
    ]
    print_table(
        {text_column("Input"): name, f"{currency}#": money(paid), "Of logged#": percent(paid / cost if cost else 1.0)}
        for name, paid in rows
    )
    if report.pause_costs:
        five_minutes = next(iter(report.pause_costs.values()))
        print_table(
            (
                {
                    text_column("Pauses"): name,
                    f"{currency}#": money(paid),
                    "Of five-minute writes#": percent(paid / five_minutes),
                }
                for name, paid in report.pause_costs.items()
            ),
            title="If each turn stored its whole prompt:",
        )
        print_text(
            "The row auto assumes that a request with mixed lifetimes pays only for the tokens after its hit. Anthropic documents"
            " it; it is not tested with Anthropic's API (docs/agent-caching.md)."
        )
    if report.keep_warm is not None:
        sent = report.keep_warm
        print_text(
            f"The last row has {plural(sent.requests, 'keep-warm request')}, which read {plural(sent.tokens, 'token')} for"
            f" {money(sent.cost)} {currency}."
        )
    _print_advice(report)
    _print_notes(report)


def _print_advice(report: "SessionReport") -> None:
    if report.advice:
        shown = advice_rows(report.advice[:_SHOWN_CHANGES], report.ledger.currency)
        print_table(shown, title="What to change first:")
    print_minor_changes(report.minor_changes)


def _print_sums(report: "SessionReport") -> None:
    turns = sum(session.turns for session in report.sessions)
    # Sub-agents have sessions of their own, also in the file of their parent.
    place = f" in {plural(report.files, 'file')}" if report.files else ""
    counts = f"{plural(len(report.sessions), 'session')}{place}, {plural(turns, 'request')}"
    print_text(f"{counts}, {report.ledger.prompt_tokens:,} input tokens, {percent(report.reuse)} reused")
    if report.repeated is not None:
        middle, average = report.repeated
        print_text(
            "input with which an earlier request to the model began, without the first turns of sessions, by session:"
            f" median {percent(middle)}, mean {percent(average)}"
        )


def _print_notes(report: "SessionReport") -> None:
    if report.files and any(session.lost.get("evicted") for session in report.sessions):
        print_note(
            "evicted: transcripts of Claude Code and opencode lack system prompt and tools, so a change of them, such as"
            " of a date, looks like a prefix that the provider dropped; a log of whole requests shows it"
        )
    if report.is_relative:
        print_note(
            'no model has a price: costs are relative to input, with Anthropic\'s ratios; set [journal.prices."MODEL"]'
        )
    if report.unpriced:
        print_note(unpriced_note(report.unpriced))
    if report.without_usage:
        print_note(f"{report.without_usage:,} requests report no usage and are not counted")
