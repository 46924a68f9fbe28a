from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvproxy.commands.formatting import money, percent
from kvproxy.commands.tables import Row, text_column

if TYPE_CHECKING:
    from kvproxy.journal.sessions.session_reader import LedgerReport


def ledger_rows(report: "LedgerReport") -> Iterator[Row]:
    from kvproxy.journal.sessions.ledger import CAUSES

    has_price = any(row.cost is not None for row in report.rows)
    for row in report.rows:
        yield {
            text_column("Result"): row.result,
            "Tokens#": row.tokens,
            "Share#": percent(row.share),
            **({f"Lost {report.currency}#": money(row.cost)} if has_price else {}),
            text_column("Meaning"): CAUSES.get(row.result, "The backend had them."),
        }
