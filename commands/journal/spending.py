"""Prints the cost of requests, by day, project, model, or client."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from kvproxy.commands.formatting import money, percent
from kvproxy.commands.output import Output, print_note
from kvproxy.commands.tables import Layout, Row, digest_column, print_table
from kvproxy.journal.sessions.ledger import main_cause
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.journal.spending import Spending, SpendingReport

_UNKNOWN = "(unknown)"


def spending_output(report: "SpendingReport", layout: Layout) -> Output:
    return Output(asdict(report), lambda: _print_spending(report, layout))


def _print_spending(report: "SpendingReport", layout: Layout) -> None:
    total = [report.total] if len(report.rows) > 1 else []
    print_table(
        [_spending_row(row, report) for row in [*report.rows, *total]], empty="no paid requests yet", layout=layout
    )
    if report.total.unpriced:
        print_note(
            f"not in the money: {plural(report.total.unpriced, 'request')} of models without a price; set"
            ' [journal.prices."MODEL"]'
        )
    if report.total.unreported:
        print_note(
            f"not in the tokens and the money: {plural(report.total.unreported, 'request')} without reported usage"
        )


def _spending_row(row: "Spending", report: "SpendingReport") -> Row:
    is_priced_in_part = row.unpriced > 0
    return {
        digest_column(report.by.capitalize(), 40): row.name or _UNKNOWN,
        "Requests#": row.requests,
        "Input#": row.input_tokens,
        "Cached#": percent(row.reused_tokens / row.input_tokens) if row.input_tokens else None,
        "Written#?": row.written_tokens,
        "Output#": row.output_tokens,
        f"Input {report.currency}#?": money(row.input_cost),
        f"Output {report.currency}#?": money(row.output_cost),
        f"{report.currency}#": money(row.cost, leaves_out_models=is_priced_in_part),
        "Lost most to?": main_cause(row.lost),
        f"Lost {report.currency}#?": money(row.lost_cost),
    }
