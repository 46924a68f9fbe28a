"""Declares the filters of the log, each in one place: its help, its form, and its SQL condition."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, get_args

from kvproxy.errors import InvalidRequest
from kvproxy.journal.period import start_time
from kvproxy.journal.record import OF_TAG, OF_TENANT
from kvproxy.journal.sessions.ledger import CAUSES, LOSSES
from kvproxy.operations.parameters import Filter, Parameter, declared_parameters
from kvproxy.operations.suggestions import layers, losses, models, reasons, session_numbers, tags, teams, tenants
from kvproxy.units import parse_since, parse_time


@dataclass(frozen=True, slots=True)
class SqlFilter(Filter):
    """A parameter that selects records by an SQL condition over the view `requests`.

    Attributes:
        sql: the condition; each `?` stands for the value.
        value: computes the value of the condition; None takes the parameter's own.
    """

    sql: str = ""
    value: "Callable[[RecordQuery], object] | None" = None


def _parse_layer(text: str) -> str:
    from kvproxy.journal.record import Layer

    if text not in get_args(Layer):
        raise InvalidRequest(f"unknown layer {text[:40]!r}: use one of {', '.join(get_args(Layer))}", param="layer")
    return text


def _parse_reason(text: str) -> str:
    from kvproxy.journal.reasons import check_reason_prefix

    check_reason_prefix(text)
    return text


def _parse_lost(text: str) -> str:
    if text not in LOSSES:
        raise InvalidRequest(f"unknown cause {text[:40]!r}: use one of {', '.join(LOSSES)}", param="lost")
    return text


_SINCE = (
    "Only requests within this duration, or since this time: 90s, 7d, 2026-11-28, 2026-11-28T14:30, 14:30, yesterday."
)
_REASON = "Only this reason, or reasons that begin so, such as miss; for lost prefixes, see kvproxy sessions show."
_UNTIL = "Only requests before this time; a date means its start, and a duration that time ago."
_LOST = (
    "Only requests with prompt tokens lost to this cause, such as changed, or to any; kvproxy sessions show lists them."
)
_LOST_TOKENS = " ".join(f"when '{cause}' then {cause}" for cause in CAUSES)
_ANY_LOST = " + ".join(f"coalesce({cause}, 0)" for cause in CAUSES if cause != "new")
_LOST_SQL = f"number in (select number from turns where case ? {_LOST_TOKENS} else {_ANY_LOST} end > 0)"
_SESSION_SQL = (
    "number in (select t.number from turns t where t.session in (select s.session from turns s"
    " where cast(s.session as text) = ? or s.name = (select n.number from names n where n.name = ?)))"
)
_JUDGED = "Only requests whose semantic lookup compared a stored question."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """Filters of records; None disables a filter.

    `since` is a time, or in seconds before `until`, or before the current time. `until` is in seconds since the epoch.
    `after` and `before` are exclusive bounds of `Record.number`. `limit` is the maximum number of
    records; the newest are returned.
    """

    since: Annotated[
        float | datetime | None,
        SqlFilter(_SINCE, parse_since, "TIME", needs_unit=True, sql="time >= ?", value=lambda q: q.start),
    ] = None
    until: Annotated[float | None, SqlFilter(_UNTIL, parse_time, "TIME", needs_unit=True, sql="time < ?")] = None
    layer: Annotated[
        str | None,
        SqlFilter("Only requests answered by this layer.", _parse_layer, sql="layer = ?", suggestions=layers),
    ] = None
    reason: Annotated[
        str | None, SqlFilter(_REASON, _parse_reason, sql="substr(reason, 1, length(?)) = ?", suggestions=reasons)
    ] = None
    tenant: Annotated[
        str | None,
        SqlFilter(
            "Only this tenant, or the client with this name.",
            sql=OF_TENANT,
            also="--client",
            suggestions=tenants,
        ),
    ] = None
    team: Annotated[
        str | None,
        SqlFilter("Only clients that had this team, and the team itself.", sql="team = ?", suggestions=teams),
    ] = None
    model: Annotated[str | None, SqlFilter("Only requests for this model.", sql="model = ?", suggestions=models)] = None
    tag: Annotated[
        str | None,
        SqlFilter("Only requests with this tag.", sql=OF_TAG, value=lambda q: f",{q.tag},", suggestions=tags),
    ] = None
    session: Annotated[
        str | None,
        SqlFilter(
            "Only requests to the backend of this session, by its id or name, as sessions lists them.",
            sql=_SESSION_SQL,
            suggestions=session_numbers,
        ),
    ] = None
    lost: Annotated[str | None, SqlFilter(_LOST, _parse_lost, "CAUSE", sql=_LOST_SQL, suggestions=losses)] = None
    # A condition reads any column, so only commands with access to the journal have it.
    where: Annotated[str | None, Filter('Only this SQL condition, such as "cost > 0.01".', is_remote=False)] = None
    after: Annotated[int | None, SqlFilter("Only records after this number.", is_option=False, sql="number > ?")] = None
    before: Annotated[int | None, SqlFilter("Only records before this number.", is_option=False, sql="number < ?")] = (
        None
    )
    judged: Annotated[bool, SqlFilter(_JUDGED, is_option=False, sql="near is not null and ?")] = False
    limit: Annotated[int | None, Parameter("Maximum number of records.", is_option=False)] = None

    @property
    def start(self) -> float | None:
        """The earliest time, in seconds since the epoch."""
        return start_time(self.since, self.until)

    def sql(self) -> tuple[str, list[object]]:
        """Return the `where` clause, which is empty without a filter, and its values."""
        conditions, values = [], list[object]()
        for parameter in declared_parameters(type(self)):
            filter, value = parameter.metadata, getattr(self, parameter.name)
            if isinstance(filter, SqlFilter) and value is not None and value is not False:
                conditions.append(filter.sql)
                values += [value if filter.value is None else filter.value(self)] * filter.sql.count("?")
        if self.where is not None:
            conditions.append(f"({self.where})")
        return (f" where {' and '.join(conditions)}" if conditions else ""), values
