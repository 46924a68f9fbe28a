"""kvproxy log top"""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from kvproxy.commands.command import command
from kvproxy.commands.formatting import percent
from kvproxy.commands.log.requests import EMPTY, QueryOptions
from kvproxy.commands.options import JournalOptions, Limit
from kvproxy.commands.output import Output
from kvproxy.commands.tables import table, text


class TopGroup(StrEnum):
    """Fields by which requests are grouped."""

    prompt = "prompt"
    tenant = "tenant"
    model = "model"
    tag = "tag"
    reason = "reason"
    layer = "layer"
    upstream = "upstream"


@command
def top(
    *,
    by: Annotated[TopGroup, typer.Option(help="Group requests by this field.")] = TopGroup.prompt,
    backend: Annotated[bool, typer.Option("--backend", help="Sort by backend time instead of requests.")] = False,
    limit: Limit = 10,
    selection: QueryOptions,
    source: JournalOptions,
) -> Output:
    """List the most frequent or most expensive requests.

    Example: kvproxy log top --since 1h

    Example: kvproxy log top --backend --by tenant
    """
    query = selection.query()
    found = source.open().groups(query, by.value, order="backend" if backend else "requests", limit=limit)
    columns = ("Requests#", "Cached#", "Computed tokens#", "Backend seconds#", text(by.value.capitalize()))
    rows = (
        (row.requests, percent(row.cached / max(1, row.requests)), row.computed, f"{row.seconds:,.2f}", row.name)
        for row in found
    )
    return table([asdict(row) for row in found], columns, rows, empty=EMPTY)
