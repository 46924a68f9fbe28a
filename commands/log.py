"""kvproxy log: what became of requests."""

import json
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvproxy.proxy_client.journal import Layer, Model, Reason, Since, Tenant, Where, open_journal, query, questions
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Token, Url
from kvproxy.commands.output import print_facts, print_json, print_table
from kvproxy.commands.tables import digest, text
from kvproxy.commands.formatting import moment

if TYPE_CHECKING:
    from kvproxy.journal.reader import Query, Reader
    from kvproxy.journal.record import Record

_LOOK = 0.3  # Seconds between two looks for new records.
app = typer.Typer(help="What became of requests.", no_args_is_help=False)


@app.callback(invoke_without_command=True)
def log(
    context: typer.Context,
    since: Since = None,
    layer: Layer = None,
    reason: Reason = None,
    tenant: Tenant = None,
    model: Model = None,
    where: Where = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="The last so many; 0 for all.", min=0)] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new ones as they come.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """List what became of requests, the last one at the end. It reads the journal's file, whether the proxy runs or not.

    Example: kvproxy log --since 5m --reason miss

    Example: kvproxy log -f --where "total_ms > 1000"
    """
    if context.invoked_subcommand is not None:
        return
    asked = query(since, layer, reason, tenant, model, where, limit or None)
    reader = open_journal(url, token, data)
    rows = reader.records(asked)[::-1]
    if as_json:
        _lines(reader, rows)
    else:
        _table(reader, rows)
    if follow:
        _follow(reader, asked, rows, as_json)


def _follow(reader: "Reader", asked: "Query", rows: list["Record"], as_json: bool) -> None:
    last = rows[-1].number if rows else max((row.number for row in reader.records(replace(asked, limit=1))), default=0)
    while True:
        time.sleep(_LOOK)
        rows = reader.records(replace(asked, after=last, limit=None))[::-1]
        if not rows:
            continue
        last = rows[-1].number
        if as_json:
            _lines(reader, rows)
        else:
            for line in _rows(reader, rows):
                typer.echo("\t".join(str(value) for value in line))


def _lines(reader: "Reader", rows: list["Record"]) -> None:
    for row, (asked, stored) in zip(rows, _questions(reader, rows), strict=True):
        typer.echo(json.dumps({**asdict(row), "question": asked, "stored_question": stored}))


def _questions(reader: "Reader", rows: list["Record"]) -> list[tuple[str | None, str | None]]:
    """The question of each request, and the stored question whose response a semantic hit served."""
    prompts = questions(reader.path.parent, [row.entry for row in rows])
    found: list[tuple[str | None, str | None]] = []
    for row in rows:
        stored = prompts.get(row.entry or "")
        semantic = row.layer == "semantic"
        found.append((row.text or (None if semantic else stored), stored if semantic else None))
    return found


def _table(reader: "Reader", rows: list["Record"]) -> None:
    stored = [text("stored question")] if any(row.layer == "semantic" for row in rows) else []
    shown = [row if stored else row[:-1] for row in _rows(reader, rows)]
    print_table(
        (
            "time",
            "layer",
            "reason",
            "model",
            digest("tenant", 16),
            "tokens#",
            "reused#",
            "ms#",
            digest("request", 8),
            text("question"),
            *stored,
        ),
        shown,
        empty="no requests: none came, or none fits",
    )


def _rows(reader: "Reader", rows: list["Record"]) -> list[tuple[object, ...]]:
    return [_row(row, *found) for row, found in zip(rows, _questions(reader, rows), strict=True)]


def _row(row: "Record", question: str | None, stored: str | None) -> tuple[object, ...]:
    tokens = None if row.prompt_tokens is None else row.prompt_tokens + (row.completion_tokens or 0)
    milliseconds = "-" if row.total_ms is None else f"{row.total_ms:,.1f}"
    who = row.client or row.tenant
    day, _, clock = moment(row.time).partition(" ")
    when = clock if day == moment(time.time()).partition(" ")[0] else f"{day} {clock}"
    return (
        when,
        row.layer,
        row.reason,
        row.model,
        who,
        tokens,
        row.reused_tokens,
        milliseconds,
        row.request_id,
        question,
        stored,
    )


@app.command("show")
def show(
    request: Annotated[str, typer.Argument(help="Id of a request, or what it begins with; or its number.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show everything that is kept of one request.

    Example: kvproxy log show 3f2a
    """
    record = open_journal(url, token, data).find(request)
    if as_json:
        print_json(asdict(record))
        return
    from kvproxy.journal.reasons import meaning

    print_facts(
        [
            ("time", moment(record.time)),
            *((name, value) for name, value in asdict(record).items() if name != "time" and value not in (None, "")),
            ("meaning", meaning(record.reason)),
        ]
    )
