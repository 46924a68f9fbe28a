"""`kvproxy log`: the last requests, and how each was answered."""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from typer import Argument, Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.files import checked_plot, save_charts
from kvproxy.commands.formatting import Formatted, decimal, local_time, milliseconds, money, percent, table_time
from kvproxy.commands.journal.export import export
from kvproxy.commands.journal.spending import group_title, removed_note
from kvproxy.commands.options import WRITES, JournalOptions, LimitOrAll, completion_of
from kvproxy.commands.output import Output, check_reader, print_charts, print_facts, print_note
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.tables import (
    Column,
    ListLayout,
    Row,
    add_fields,
    default_limit,
    digest_column,
    number_column,
    print_records,
    print_rows_without_names,
    print_table,
    rows_note,
    table_output,
    text_column,
)
from kvproxy.commands.unknown_values import unknown_value
from kvproxy.journal.groups import TopGroup
from kvproxy.journal.sessions.ledger import cost_of_cause
from kvproxy.operations.record_query import RecordQuery
from kvproxy.operations.suggestions import request_ids
from kvproxy.units import format_seconds, plural, tenant_name

if TYPE_CHECKING:
    from kvproxy.journal.record import Record, RecordWithQuestions
    from kvproxy.operations.journal import DirectJournal, JournalClient

EMPTY = "no request matches"
_NO_RECORDS = "the journal has no requests: kvproxy doctor checks that requests are recorded"
_NO_COST = f"{EMPTY}: a cost is null if the price or the usage is unknown"
_NO_TEAM = "no request of a team matches: kvproxy keys set NAME --team TEAM gives a client a team"
_UTC_DAYS = "the days are UTC days"
_POLL_SECONDS = 0.3
_LISTED = 20
_TOP = 10


app = CommandGroup("log", help="List requests, and how each was answered.")
app.subcommand(export)


@app.default
def log(
    *,
    selection: RecordQuery,
    limit: LimitOrAll = None,
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.journal:list_records")],
    plot: Annotated[
        Path | None, Option(help="Plot requests over time: - (terminal), .png or .svg file."), WRITES
    ] = None,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Print new requests as they end, after the last ones.")
    ] = False,
    source: JournalOptions,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """List the last requests, and how each was answered.

    It lists the last requests that ended, in order of arrival. --follow prints each request when it ends. The table has the
    fields that --where names. The command reads
    the journal's file or database, so the proxy need not run.

    Example: kvproxy log --since 5m --reason miss

    Example: kvproxy log --since yesterday --until today --csv

    Example: kvproxy log -f --where "total_ms > 1000"

    Example: kvproxy log --plot - --since 1h
    """
    is_limited = limit is not None
    limit = default_limit(limit, _LISTED) if not follow else _LISTED if limit is None else limit
    # One more row than the limit shows whether there are more.
    query = replace(selection, limit=limit + 1 if limit else None)
    if as_json and layout.csv:
        raise typer.BadParameter("give one of --json and --csv")
    if as_json or layout.jsonl:
        layout = replace(layout, jsonl=True, csv=False)
    if plot is not None:
        if layout.is_data or follow:
            raise typer.BadParameter("--plot excludes --json, --jsonl, --csv, and --follow")
        _plot(source.open_direct("--plot"), replace(query, limit=None), plot)
        return
    journal = source.open() if query.where is None else source.open_direct("--where")
    named = _named_fields(query.where)
    records = journal.records(query)
    rows = _sort_by_arrival(records[: limit or None])
    if layout.is_data:
        from kvproxy.operations.journal import list_records

        print_records(map(asdict, rows), layout, list_records.row_fields)
    elif rows or not follow:
        print_table(
            # Later rows may have values in a column that is empty now.
            (_listed_row(row, named, query.lost, hides_empty=not follow) for row in rows),
            empty=_no_record(journal, query, _NO_COST if "cost" in named else EMPTY) if not rows else "",
            layout=layout,
            records=_selectable(rows, layout),
        )
        if query.lost is not None and rows:
            _print_lost_sum(rows, query.lost)
    if follow:
        _follow(journal, query, rows, layout, named)
    # A program that gives a limit knows that there may be more rows.
    elif (
        not (is_limited and layout.is_data)
        and (note := rows_note(len(rows), len(records), is_minimum=True)) is not None
    ):
        print_note(note)


def _lost_of(row: "RecordWithQuestions", cause: str) -> tuple[int | None, float | None]:
    """Return the tokens that a request lost to a cause, or to any, and their money; None if unknown."""
    if cause == "any":
        return row.lost_tokens, row.lost_cost
    lost = row.lost or {}
    return lost.get(cause), cost_of_cause(row.lost_cost, lost, cause)


def _print_lost_sum(rows: "Sequence[RecordWithQuestions]", cause: str) -> None:
    tokens, costs = zip(*(_lost_of(row, cause) for row in rows), strict=True)
    known_tokens = [count for count in tokens if count is not None]
    known_costs = [cost for cost in costs if cost is not None]
    lost = plural(sum(known_tokens), "token") if known_tokens else "an unknown number of tokens"
    saved = money(sum(known_costs)) if known_costs else "an unknown amount"
    print_note(
        f"{plural(len(rows), 'listed request')} lost {_at_least(known_tokens, rows)}{lost}"
        f"{'' if cause == 'any' else f' to {cause}'}, whose reuse would have saved {_at_least(known_costs, rows)}{saved};"
        " savings --ledger sums all requests"
    )


def _at_least(known: Sequence[float], rows: Sequence[object]) -> str:
    return "at least " if known and len(known) < len(rows) else ""


def _named_fields(condition: str | None) -> list[str]:
    if condition is None:
        return []
    from kvproxy.journal.databases.computed_fields import named_fields

    return named_fields(condition)


def no_match(journal: "JournalClient", query: object, otherwise: str = EMPTY) -> str:
    """Return a sentence about an empty result: it names similar values of a filter whose value no request has."""
    from kvproxy.operations.journal import DirectJournal

    if isinstance(journal, DirectJournal):
        for option in ("model", "tag", "team", "tenant"):
            value: str | None = getattr(query, option, None)
            known = {tenant_name(name) for name in journal.recorded_names(option)} if value else set()
            if value and tenant_name(value) not in known:
                return unknown_value("request", "client or tenant" if option == "tenant" else option, value, known)
    return otherwise


def _no_record(journal: "JournalClient", query: RecordQuery, otherwise: str = EMPTY) -> str:
    """Return `no_match`, or a sentence about a journal without records."""
    return no_match(journal, query, otherwise) if journal.records(RecordQuery(limit=1)) else _NO_RECORDS


def _sort_by_arrival(rows: "list[RecordWithQuestions]") -> "list[RecordWithQuestions]":
    return sorted(rows, key=lambda row: (row.time, row.number))


def _plot(journal: "DirectJournal", query: RecordQuery, file: Path) -> None:
    from kvproxy.analyse.charts import Chart, ChartLine
    from kvproxy.journal.record import Layer

    is_file = str(file) != "-"
    checked_plot(file if is_file else None)
    layer_counts = journal.layer_counts(query)
    lines = [
        ChartLine(layer, [layer_counts.start + place * layer_counts.step for place in range(len(counts))], counts)
        for layer in get_args(Layer)
        if (counts := layer_counts.counts.get(layer))
    ]
    span = format_seconds(layer_counts.step)
    charts = [Chart("", f"requests by layer in each {span}", lines, time_step=layer_counts.step)] if lines else []
    if not charts:
        print_note(_no_record(journal, query))
    elif is_file:
        save_charts(charts, file)
    print_charts(charts, always=not is_file)


@app.subcommand
def show(
    request: Annotated[
        str,
        Argument(help="Id of a request, its first digits, or its number.", autocompletion=completion_of(request_ids)),
    ],
    source: JournalOptions,
) -> Output:
    """Show the record of a request.

    `cause` says how a miss differs from the earlier request most like it; kvproxy explain --request adds its session.
    `decode_ms` is the time from the start of the backend's response to its end.

    Example: kvproxy log show 3f2a
    """
    from kvproxy.journal.miss_explanation import cause_sentences
    from kvproxy.journal.reasons import meaning_of_reason
    from kvproxy.operations.journal_parameters import RecordName
    from kvproxy.operations.journal_reports import explain_record, find_record

    journal = source.open()
    record = find_record(journal, request)
    explained = journal.perform(explain_record, RecordName(request)).explained
    questions = {"question": record.question, "stored_question": record.stored_question}
    document = {**asdict(record), "decode_ms": _decode_ms(record), **questions}
    document.pop("text")
    document["cause"] = " ".join(cause_sentences(explained, local_time)) or None
    shown = {"time": None, **document} | {"time": local_time(record.time), "meaning": meaning_of_reason(record.reason)}
    lost = shown.pop("lost") or {}
    shown |= {f"lost to {cause}": tokens for cause, tokens in lost.items()}
    facts = [(name, value) for name, value in shown.items() if value not in (None, "")]
    return Output(document, lambda: print_facts(facts))


def _decode_ms(record: "Record") -> float | None:
    if record.backend_ms is None or record.total_ms is None:
        return None
    before = (record.exact_ms or 0.0) + (record.semantic_ms or 0.0) + record.backend_ms
    return round(max(0.0, record.total_ms - before), 3)


def _follow(
    journal: "JournalClient",
    query: RecordQuery,
    rows: "list[RecordWithQuestions]",
    layout: ListLayout,
    named: Sequence[str],
) -> None:
    latest = rows or journal.records(replace(query, limit=1))
    last, has_names = max((row.number for row in latest), default=0), bool(rows)
    while True:
        time.sleep(_POLL_SECONDS)
        rows = _sort_by_arrival(journal.records(replace(query, after=last, limit=None)))
        if not rows:
            check_reader()
            continue
        last = max(row.number for row in rows)
        if layout.is_data:
            print_records(map(asdict, rows), layout, with_names=False)
            continue
        listed = (_listed_row(row, named, query.lost) for row in rows)
        if has_names:
            print_rows_without_names(listed, layout, _selectable(rows, layout))
        else:
            print_table(listed, layout=layout, records=_selectable(rows, layout))
        has_names = True


def _selectable(rows: "list[RecordWithQuestions]", layout: ListLayout) -> list[dict[str, Any]]:
    return [] if layout.columns is None else list(map(asdict, rows))


def _matched_question(row: "RecordWithQuestions") -> str | None:
    # The nearest questions of all misses would fill the table; data and `log show` have them.
    is_match = row.layer == "semantic" or row.reason == "shadow"
    return row.stored_question if is_match else None


def _listed_row(
    record: "RecordWithQuestions", named: Sequence[str], lost: str | None, *, hides_empty: bool = False
) -> Row:
    """Return the row of a record, with a column for each of the `named` fields, and its tokens lost to the cause `lost`."""
    row = _record_row(record, hides_empty=hides_empty)
    if lost is not None:
        row = {**_lost_cells(record, lost), **row}
    return add_fields(row, asdict(record), named) if named else row


def _record_row(record: "RecordWithQuestions", *, hides_empty: bool) -> Row:
    return {
        "Time": table_time(record.time),
        Column("Layer", is_optional=True, outranks_text=True): record.layer,
        "Reason": _reason(record),
        number_column("Tokens", "tokens", optional=True, outranks_text=True): _tokens(record),
        number_column("Cost", "cost", optional=True, outranks_text=True): money(record.cost),
        number_column("Cached inputs", "inputs_cached", optional=True, hides_empty=hides_empty): _cached_inputs(record),
        number_column("ms", "total_ms"): milliseconds(record.total_ms),
        digest_column("Request", 8, field="request_id"): record.request_id,
        "Model?": record.model,
        number_column("Reused", "reused_tokens", optional=True): record.reused_tokens,
        digest_column("Tenant", 16, optional=True): tenant_name(record.tenant),
        Column("Team", is_optional=True, hides_empty=hides_empty): record.team,
        text_column("Question"): record.question,
        text_column("Stored question", hides_empty=hides_empty): _matched_question(record),
    }


def _cached_inputs(record: "Record") -> Formatted | None:
    if record.inputs is None:
        return None
    return Formatted(f"{record.inputs_cached or 0:,}/{record.inputs:,}", record.inputs_cached)


def _lost_cells(record: "RecordWithQuestions", cause: str) -> Row:
    tokens, cost = _lost_of(record, cause)
    names = ("lost_tokens", "lost_cost") if cause == "any" else (f"lost_to_{cause}", f"cost_of_{cause}")
    return {
        number_column("Lost" if cause == "any" else f"Lost to {cause}", names[0]): tokens,
        number_column("Its cost", names[1]): money(cost),
        text_column("First change", hides_empty=True): record.first_change,
    }


def _reason(record: "Record") -> str | Formatted:
    limit = record.reached_limit
    return record.reason if limit is None else Formatted(f"{record.reason} ({limit})", record.reason)


def _tokens(record: "RecordWithQuestions") -> int | Formatted | None:
    if record.prompt_tokens is not None and record.estimated_completion_tokens is None:
        return record.prompt_tokens + (record.completion_tokens or 0)
    prompt, completion = record.estimated_prompt_tokens, record.estimated_completion_tokens
    if prompt is None and completion is None:
        return None
    known = (record.prompt_tokens or 0) + (record.completion_tokens or 0)
    return Formatted(f"~{known + (prompt or 0) + (completion or 0):,}", record.prompt_tokens)


@app.subcommand
def top(
    *,
    by: Annotated[
        TopGroup, Option(help=f"Group requests by this field: {', '.join(get_args(TopGroup))}.", metavar="FIELD")
    ] = "prompt",
    backend: Annotated[bool, Option("--backend", help="Sort by backend time instead of requests.")] = False,
    cost: Annotated[bool, Option("--cost", help="Sort by cost instead of requests.")] = False,
    limit: LimitOrAll = None,
    selection: RecordQuery,
    layout: Annotated[ListLayout, RowFields("kvproxy.journal.groups:RequestGroup")],
    source: JournalOptions,
) -> Output:
    """List the most frequent or most expensive requests.

    A question has several rows if its requests differ in other fields; `Differs in` names the fields that differ from the
    first row. A question without a recorded text is named by its prompt, as in kvproxy log --where "prompt = 14".

    Example: kvproxy log top --since 1h

    Example: kvproxy log top --backend --by tenant

    Example: kvproxy log top --cost --since 7d
    """
    from kvproxy.journal.completeness import complete_since

    if backend and cost:
        raise typer.BadParameter("give one of --backend and --cost")
    limit = default_limit(limit, _TOP)
    # One more row than the limit shows whether there are more.
    journal = source.open_direct("log top")
    order: Literal["requests", "backend", "cost"] = "cost" if cost else "backend" if backend else "requests"
    groups = journal.groups(selection, by, order=order, limit=limit + 1 if limit else None)
    listed = groups[: limit or None]
    rows: list[Row] = [
        {
            text_column("Question" if by == "prompt" else group_title(by), field="name"): tenant_name(row.name)
            if by == "tenant"
            else row.name,
            "Requests#": row.requests,
            number_column("Cached", "cached"): Formatted(
                f"{row.cached:,} ({percent(row.cached / max(1, row.requests))})", row.cached
            ),
            # The column of the order stays in a narrow terminal.
            number_column("Computed tokens", "computed", optional=backend): row.computed,
            number_column("Backend seconds", "seconds", optional=not backend): decimal(row.seconds),
            number_column("Response tokens", "generated", optional=True): row.generated,
            number_column("Cost", "cost", optional=not cost): money(row.cost, leaves_out_models=row.unpriced > 0),
        }
        for row in listed
    ]
    if by == "prompt":
        name = Column("Differs in", digits=30, is_text=True, hides_empty=True)
        rows = [{**cells, name: ", ".join(row.differs_in)} for cells, row in zip(rows, listed, strict=True)]
    document = [asdict(row) for row in listed]
    empty = "" if rows else _no_record(journal, selection, _NO_TEAM if by == "team" else EMPTY)
    output = table_output(document, rows, empty=empty, layout=layout, total=len(groups), is_minimum=True)
    notes = [output.note, _UTC_DAYS if by == "day" else None]
    if (oldest := complete_since(journal.reader)) is not None and (selection.start or 0.0) < oldest:
        notes.append(removed_note(oldest))
    return replace(output, note="; ".join(filter(None, notes)) or None)
