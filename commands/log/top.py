"""kvproxy log top"""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from kvproxy.commands.formatting import percent
from kvproxy.commands.log.options import EMPTY, Layer, Model, Reason, Since, Tenant, Where
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Limit, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.commands.tables import print_table, text


class TopGroup(StrEnum):
    """Fields by which requests are grouped."""

    prompt = "prompt"
    tenant = "tenant"
    model = "model"
    tag = "tag"
    reason = "reason"
    layer = "layer"
    upstream = "upstream"


def top(
    by: Annotated[TopGroup, typer.Option(help="Group requests by this field.")] = TopGroup.prompt,
    backend: Annotated[bool, typer.Option("--backend", help="Sort by backend time instead of requests.")] = False,
    limit: Limit = 10,
    since: Since = None,
    layer: Layer = None,
    reason: Reason = None,
    tenant: Tenant = None,
    model: Model = None,
    where: Where = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List the most frequent or most expensive requests.

    Example: kvproxy log top --since 1h

    Example: kvproxy log top --backend --by tenant
    """
    from kvproxy.proxy_client.journal import journal_query, open_journal

    query = journal_query(since, layer, reason, tenant, model, where)
    journal = open_journal(url, token, data)
    rows = journal.groups(query, by.value, order="backend" if backend else "requests", limit=limit)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ("Requests#", "Cached#", "Computed tokens#", "Backend seconds#", text(by.value.capitalize())),
        (
            (
                row.requests,
                percent(row.cached / max(1, row.requests)),
                row.computed,
                f"{row.seconds:,.2f}",
                row.name,
            )
            for row in rows
        ),
        empty=EMPTY,
    )
