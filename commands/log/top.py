from dataclasses import asdict
from typing import Annotated, Literal

import typer

from kvproxy.commands.command import command
from kvproxy.commands.formatting import percent
from kvproxy.commands.log.requests import EMPTY, QueryOptions
from kvproxy.commands.options import JournalOptions, Limit
from kvproxy.commands.output import Output
from kvproxy.commands.tables import Column, Layout, Row, table_output, text_column
from kvproxy.units import tenant_name

TopGroup = Literal["prompt", "tenant", "model", "tag", "reason", "layer", "upstream"]


@command
def top(
    *,
    by: Annotated[TopGroup, typer.Option(help="Group requests by this field.")] = "prompt",
    backend: Annotated[bool, typer.Option("--backend", help="Sort by backend time instead of requests.")] = False,
    limit: Limit = 10,
    selection: QueryOptions,
    layout: Layout,
    source: JournalOptions,
) -> Output:
    """List the most frequent or most expensive requests.

    A question has several rows if its requests differ in other fields; `Differs in` names the fields that differ from the
    first row.

    Example: kvproxy log top --since 1h

    Example: kvproxy log top --backend --by tenant
    """
    query = selection.query()
    found = source.open().groups(query, by, order="backend" if backend else "requests", limit=limit)
    has_differences = any(row.differs_in for row in found)
    rows: list[Row] = [
        {
            "Requests#": row.requests,
            "Cached#": percent(row.cached / max(1, row.requests)),
            # The column of the order stays in a narrow terminal.
            f"Computed tokens#{'?' if backend else ''}": row.computed,
            f"Backend seconds#{'' if backend else '?'}": f"{row.seconds:,.2f}",
            "Response tokens#?": row.generated,
            **({Column("Differs in", digits=30, is_text=True): ", ".join(row.differs_in)} if has_differences else {}),
            text_column(by.capitalize()): tenant_name(row.name) if by == "tenant" else row.name,
        }
        for row in found
    ]
    return table_output([asdict(row) for row in found], rows, empty=EMPTY, layout=layout)
