"""kvproxy log"""

import json
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.formatting import milliseconds, moment, one_line
from kvproxy.commands.log.options import EMPTY, Layer, Model, Reason, Since, Tenant, Where
from kvproxy.commands.options import DEFAULT_URL, Data, Token, Url
from kvproxy.commands.tables import Columns, Layout, Wide, digest, print_table, text

if TYPE_CHECKING:
    from kvproxy.journal.questions import QuestionedRecord
    from kvproxy.journal.reader import Query
    from kvproxy.proxy_client.journal import JournalClient

_POLL_SECONDS = 0.3


def log(
    context: typer.Context,
    since: Since = None,
    layer: Layer = None,
    reason: Reason = None,
    tenant: Tenant = None,
    model: Model = None,
    where: Where = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Maximum number of rows; 0 lists all.", min=0)] = 20,
    wide: Wide = False,
    columns: Columns = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new requests as they arrive.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """List the last requests, and how each was answered.

    It reads the journal's file, so the proxy need not run.

    Example: kvproxy log --since 5m --reason miss

    Example: kvproxy log -f --where "total_ms > 1000"
    """
    if context.invoked_subcommand is not None:
        return
    from kvproxy.proxy_client.journal import journal_query, open_journal

    query = journal_query(since, layer, reason, tenant, model, where, limit or None)
    journal = open_journal(url, token, data)
    rows = journal.records(query)[::-1]
    if as_json:
        _print_lines(rows)
    else:
        has_stored = any(row.record.layer == "semantic" for row in rows)
        print_table(
            (
                "Time",
                "Layer",
                "Reason",
                "Model?",
                digest("Tenant", 16, optional=True),
                "Tokens#?",
                "Reused#?",
                "ms#",
                digest("Request", 8),
                text("Question"),
                *([text("Stored question")] if has_stored else []),
            ),
            (_row(row) if has_stored else _row(row)[:-1] for row in rows),
            empty=EMPTY,
            layout=Layout(wide, columns),
        )
    if follow:
        _follow(journal, query, rows, as_json)


def _follow(journal: "JournalClient", query: "Query", rows: "list[QuestionedRecord]", as_json: bool) -> None:
    latest = rows[::-1] or journal.records(replace(query, limit=1))
    last = latest[0].record.number if latest else 0
    while True:
        time.sleep(_POLL_SECONDS)
        rows = journal.records(replace(query, after=last, limit=None))[::-1]
        if not rows:
            continue
        last = rows[-1].record.number
        if as_json:
            _print_lines(rows)
        else:
            for row in rows:
                typer.echo("\t".join(map(one_line, _row(row))))


def _print_lines(rows: "list[QuestionedRecord]") -> None:
    for row in rows:
        typer.echo(json.dumps({**asdict(row.record), "question": row.question, "stored_question": _stored(row)}))


def _stored(row: "QuestionedRecord") -> str | None:
    return row.stored_question if row.record.layer == "semantic" else None


def _row(row: "QuestionedRecord") -> tuple[Any, ...]:
    record = row.record
    day, _, clock = moment(record.time).partition(" ")
    is_today = day == moment(time.time()).partition(" ")[0]
    tokens = None if record.prompt_tokens is None else record.prompt_tokens + (record.completion_tokens or 0)
    return (
        clock if is_today else f"{day} {clock}",
        record.layer,
        record.reason,
        record.model,
        record.client or record.tenant,
        tokens,
        record.reused_tokens,
        milliseconds(record.total_ms),
        record.request_id,
        row.question,
        _stored(row),
    )
