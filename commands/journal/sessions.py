"""`kvproxy sessions`: conversations, and their prompt tokens that were not reused."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.formatting import Formatted, format_duration, money, percent, table_time
from kvproxy.commands.journal.log import no_match
from kvproxy.commands.journal.spending import NO_BILL, SPENDING, session_cost, spending_output
from kvproxy.commands.options import JournalOptions, LimitOrAll, completion_of, groups_option
from kvproxy.commands.output import Output, print_facts
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.tables import (
    Column,
    ListLayout,
    Row,
    default_limit,
    digest_column,
    number_column,
    print_table,
    table_output,
    text_column,
)
from kvproxy.journal.sessions.ledger import main_cause
from kvproxy.operations.journal_parameters import SessionName, SessionQuery, SpendingQuery
from kvproxy.operations.suggestions import session_numbers
from kvproxy.units import first_names, tenant_name

if TYPE_CHECKING:
    from kvproxy.journal.sessions.session_reader import Session, Turn
    from kvproxy.journal.sessions.turn_tree import TreeRow

# Most sessions have no diagnoses and no keep-warm requests.
_PROVIDER_COLUMNS = (
    Column("Provider says", is_text=True, is_optional=True, hides_empty=True, field="diagnosis"),
    Column("Keep-warm", is_text=True, is_optional=True, hides_empty=True),
)
_UNPRICED = Column("Unpriced turns", is_number=True, is_optional=True, hides_empty=True)
_LATER_CHANGES = Column(
    "Also changed", is_text=True, is_optional=True, folds=True, hides_empty=True, field="later_changes"
)
_MAX_CHANGES = 3
_LOST_WIDTH = 48  # Three causes.

app = CommandGroup("sessions", help="List sessions and their reused and lost tokens.")


@app.default
def sessions(
    *,
    by: Annotated[
        str | None, groups_option("List the cost of the requests by one or several fields instead", of_journal=True)
    ] = None,
    limit: LimitOrAll = None,
    selection: SessionQuery,
    layout: Annotated[ListLayout, RowFields("kvproxy.operations.journal_reports:list_sessions", by=SPENDING)],
    source: JournalOptions,
) -> Output:
    """List the last sessions: their turns, tokens, and tokens that were not reused.

    A session is a conversation: requests that continue each other, or that name the same session. Its id is the number of
    its first request in the journal, so ids have gaps, and an id does not change. With --by, list the
    prices of input and output, also for requests without a session. A day is a local day. The project is the tag
    project:NAME of a request, the client the name of its key, and the team that of this client at the time of the request.

    Example: kvproxy sessions --by day --since 7d

    Example: kvproxy sessions --turns 2

    Example: kvproxy sessions --since 2h --json
    """
    if by is not None:
        from kvproxy.operations.journal_reports import report_spending

        if selection.turns != 1 or limit is not None:
            option = "--limit" if limit is not None else "--turns"
            raise typer.BadParameter(f"--by sums all requests by group, so {option} does not apply")
        query = SpendingQuery(
            by,
            selection.since,
            selection.until,
            tenant=selection.tenant,
            team=selection.team,
            model=selection.model,
            tag=selection.tag,
        )
        journal = source.open_for_money()
        report = journal.perform(report_spending, query)
        empty = "" if report.rows else no_match(journal, query, NO_BILL)
        return spending_output(report, layout, empty)
    from kvproxy.operations.journal_reports import find_sessions

    limit = default_limit(limit, 20)
    # One more row than the limit shows whether there are more.
    journal = source.open()
    summaries = find_sessions(journal, replace(selection, limit=limit + 1 if limit else None))
    listed = summaries[: limit or None]
    rows = list(map(_session_row, listed))
    return table_output(
        listed,
        rows,
        empty="" if rows else no_match(journal, selection, "no sessions"),
        layout=layout,
        total=len(summaries),
        is_minimum=True,
    )


@app.subcommand
def show(
    session: Annotated[
        str,
        Argument(
            help="Id or name of a session, or the id of one of its requests.",
            autocompletion=completion_of(session_numbers),
        ),
    ],
    layout: Annotated[
        ListLayout,
        RowFields("depth", "kvproxy.journal.sessions.session_reader:Turn", "later_changes", "before", "after"),
    ],
    source: JournalOptions,
) -> Output:
    """Show the tree of a session with one row per turn.

    Branches and sub-agents are marked with dots. For tokens that were not reused, the row has the cause, and the first
    change of the prompt. --wide quotes the changed words, if texts are stored (journal.text, or the response).

    Example: kvproxy sessions show 42
    """
    from kvproxy.journal.sessions.session_reader import summarize_session
    from kvproxy.operations.journal_reports import show_session

    rows = source.open().perform(show_session, SessionName(session, quotes=True))

    def show() -> None:
        summary = summarize_session([row.turn for row in rows if row.turn.session == rows[0].turn.session])
        print_facts(
            [
                ("session", f"{summary.id} {summary.name or ''}"),
                *_named_request(session, rows, summary),
                ("tenant", tenant_name(summary.tenant)),
                ("model", ", ".join(summary.models)),
                *([("upstream", ", ".join(summary.upstreams))] if summary.upstreams else []),
                ("prompt_tokens", summary.prompt_tokens),
                (
                    "reused_tokens",
                    Formatted("not reported", None) if summary.reused_tokens is None else summary.reused_tokens,
                ),
                ("share", _reused_share(summary)),
                *((f"lost to {cause}", tokens) for cause, tokens in summary.lost.items()),
                *_cost_facts(rows, summary),
                *_advice(rows, summary),
            ]
        )
        print_table(map(_turn_row, rows), layout=layout, records=records)

    added = [{"later_changes": row.later_changes, "before": row.before, "after": row.after} for row in rows]
    records = [{"depth": row.depth, **asdict(row.turn), **more} for row, more in zip(rows, added, strict=True)]
    return Output(records, show)


def _named_request(name: str, rows: "Sequence[TreeRow]", session: "Session") -> list[tuple[str, object]]:
    """Return the turn that the argument names, if it is the id of a request instead of the session's id or name."""
    if name in (str(session.id), session.name):
        return []
    turns = [row.turn for row in rows if name == str(row.turn.number) or row.turn.request_id.startswith(name)]
    return [("request", f"{name} is turn {turn.turn} of session {turn.session}") for turn in turns[:1]]


def _advice(rows: "Sequence[TreeRow]", session: "Session") -> list[tuple[str, object]]:
    """Return what avoids the most expensive loss to the session's main cause."""
    from kvproxy.journal.sessions.advice import advise

    cause = main_cause(session.lost, session.reused_tokens)
    turns = [row.turn for row in rows if row.turn.session == session.id]
    remedies = [row.remedy for row in advise(turns, {}, "").rows if row.cause == cause]
    return [("advice", f"{cause}: {remedy}") for remedy in remedies[:1]]


def _cost_facts(rows: "Sequence[TreeRow]", session: "Session") -> list[tuple[str, object]]:
    """Return the cost of a session, and its cost with sub-agents if it has some."""
    cost = session_cost(session)
    if all(row.turn.session == session.id for row in rows):
        return [("cost", cost)]
    costs = [row.turn.cost for row in rows if row.turn.cost is not None]
    every = money(sum(costs) if costs else None, leaves_out_models=len(costs) < len(rows))
    return [("cost", cost), ("cost with sub-agents", every)]


def _reused_share(session: "Session") -> Formatted | None:
    return None if session.reused_tokens is None else percent(session.reused_tokens / max(1, session.prompt_tokens))


def _session_row(session: "Session") -> Row:
    return {
        # Without a thousands separator, to copy it.
        Column("Session", field="id"): str(session.id),
        Column("Name", is_text=True, is_optional=True, hides_empty=True): session.name,
        digest_column("Tenant", 16, optional=True): tenant_name(session.tenant),
        text_column("Model", field="models"): ", ".join(session.models),
        "Turns#": session.turns,
        number_column("Input", "prompt_tokens", optional=True): session.prompt_tokens,
        number_column("Reused", "reused_tokens", optional=True): session.reused_tokens,
        "Share#": _reused_share(session),
        "Lost most to": main_cause(session.lost, session.reused_tokens),
        "Longest pause#?": format_duration(round(session.longest_pause)),
        "Cost#": session_cost(session),
        "Lost cost#?": money(session.lost_cost, leaves_out_models=session.unpriced_turns > 0),
        "Saved#?": money(session.saved, leaves_out_models=session.unpriced_turns > 0),
        _UNPRICED: session.unpriced_turns or Formatted("", 0),
        "Last": table_time(session.last),
        Column("Upstream", is_text=True, is_optional=True, field="upstreams"): ", ".join(session.upstreams) or None,
    }


def _diagnosis(turn: "Turn") -> str | None:
    return turn.diagnosis if turn.agrees is not False else f"{turn.diagnosis} (the ledger differs)"


def _new_history(turn: "Turn") -> str | None:
    """Name a turn that continues no earlier one of its session, as after a compaction."""
    return "another history" if turn.turn == 1 and turn.number != turn.session else None


def _quote(row: "TreeRow") -> str | None:
    """Quote the words of the first change."""
    if row.before is None and row.after is None:
        return None
    if row.before is None or row.after is None:
        return f"new: {row.after!r}" if row.before is None else f"missing: {row.before!r}"
    return f"{row.before!r} became {row.after!r}"


def _turn_row(row: "TreeRow") -> Row:
    turn = row.turn
    # A narrow terminal truncates the end, which is new text.
    causes = sorted(turn.lost.items(), key=lambda item: item[0] == "new")
    lost = Formatted(
        ", ".join(f"{cause} {tokens:,}" for cause, tokens in causes),
        ", ".join(f"{cause} {tokens}" for cause, tokens in causes),
    )
    return {
        "Turn": f"{'·' * row.depth}{'warming' if turn.is_warming else turn.turn}",
        "Time?": table_time(turn.time),
        "Pause#?": None if turn.pause is None else format_duration(round(max(0.0, turn.pause))),
        number_column("Input", "prompt_tokens", optional=True): turn.prompt_tokens,
        number_column("Reused", "reused_tokens", optional=True): turn.reused_tokens,
        Column("Lost", is_text=True, folds=True, min_width=_LOST_WIDTH): lost,
        "Lost cost#?": money(turn.lost_cost),
        "Cost#?": money(turn.cost),
        Column("First change", is_text=True, folds=True): turn.first_change or _new_history(turn),
        _LATER_CHANGES: Formatted(first_names(row.later_changes, _MAX_CHANGES), ", ".join(row.later_changes)),
        Column("Quote", is_text=True, is_optional=True, hides_empty=True): _quote(row),
        **dict(zip(_PROVIDER_COLUMNS, (_diagnosis(turn), turn.keep_warm), strict=True)),
        digest_column("Request", 8, optional=True, field="request_id"): turn.request_id,
    }
