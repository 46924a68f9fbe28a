"""Declares the parameters of the operations that read the journal."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Literal

from kvproxy.errors import InvalidRequest
from kvproxy.journal.groups import SavingsGroup, spending_groups
from kvproxy.journal.sums_filter import SumsFilter, sums_filter
from kvproxy.operations.parameters import Filter, Parameter, check_id, duration, period_end, period_start
from kvproxy.operations.suggestions import models, tags, teams, tenants

_TENANT = "Only requests of this tenant, or of the client with this name."
_MODEL = "Only requests for this model."
_TAG = "Only requests with this tag."
_TEAM = "Only requests of clients that had this team, and of the team itself."
_UNTIL_DAY = "Whole UTC days that begin before this time; a date means its start."
_SINCE_DAY = "Whole UTC days since this duration ago, or since this time: 7d, 2026-11-28, yesterday."


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    since: Annotated[float, duration("Length of the period.")] = 3_600.0
    until: Annotated[
        float | None, period_end("End of the period in seconds since 1970, or as a time, by default now.")
    ] = None
    step: Annotated[float, duration("Length of an interval.")] = 60.0
    by: Annotated[Literal["layer", "reason"], Parameter("Count requests by this field.")] = "layer"


@dataclass(frozen=True, slots=True)
class RecordName:
    id: Annotated[str, Parameter("Id of a request, the beginning of its id, or its record number.")]

    def __post_init__(self) -> None:
        check_id(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerQuery:
    since: Annotated[float | datetime | None, period_start(_SINCE_DAY)] = None
    until: Annotated[float | None, period_end(_UNTIL_DAY)] = None
    tenant: Annotated[str | None, Filter(_TENANT, also="--client", suggestions=tenants)] = None
    team: Annotated[str | None, Filter(_TEAM, suggestions=teams)] = None
    model: Annotated[str | None, Filter(_MODEL, suggestions=models)] = None

    def selection(self) -> SumsFilter:
        return sums_filter(self.since, self.until, self.tenant, self.model, self.team)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedQuery(LedgerQuery):
    """A query of reports that also read records, which have tags."""

    tag: Annotated[str | None, Filter(_TAG, suggestions=tags)] = None

    def selection(self) -> SumsFilter:
        return replace(LedgerQuery.selection(self), tag=self.tag)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsQuery(TaggedQuery):
    by: Annotated[SavingsGroup, Parameter("Group requests by this field.")] = "layer"

    def __post_init__(self) -> None:
        if self.tag is not None and self.by in ("tag", "project"):
            raise InvalidRequest(
                f"the journal has no sums by two tags: give one of tag and by={self.by}, or list the requests with log --tag",
                param="tag",
            )


@dataclass(frozen=True, slots=True)
class PriceQuery:
    model: Annotated[str | None, Parameter("Name of a model; by default those in the journal and the settings.")] = None


@dataclass(frozen=True, slots=True)
class SpendingQuery:
    by: Annotated[str, Parameter("Group requests by these fields, separated by commas.", spending_groups)] = "day"
    since: Annotated[float | datetime | None, period_start("Only requests since then: 7d, 2026-11-28, today.")] = None
    until: Annotated[float | None, period_end("Only requests before this time.")] = None
    tenant: Annotated[str | None, Filter(_TENANT, also="--client", suggestions=tenants)] = None
    team: Annotated[str | None, Filter(_TEAM, suggestions=teams)] = None
    model: Annotated[str | None, Filter(_MODEL, suggestions=models)] = None
    tag: Annotated[str | None, Filter(_TAG, suggestions=tags)] = None


@dataclass(frozen=True, slots=True)
class SessionQuery:
    turns: Annotated[int, Parameter("Only sessions with at least this number of turns.")] = 1
    since: Annotated[
        float | datetime | None, period_start("Only sessions active since then: 2h, 2026-11-28, today.")
    ] = None
    until: Annotated[float | None, period_end("Only sessions active before this time.")] = None
    tenant: Annotated[
        str | None,
        Filter("Only sessions of this tenant, or of the client with this name.", also="--client", suggestions=tenants),
    ] = None
    team: Annotated[
        str | None, Filter("Only sessions of clients that had this team, and of the team itself.", suggestions=teams)
    ] = None
    model: Annotated[str | None, Filter("Only sessions with a request for this model.", suggestions=models)] = None
    tag: Annotated[str | None, Filter("Only sessions with a request with this tag.", suggestions=tags)] = None
    limit: Annotated[int | None, Parameter("Maximum number of sessions.", is_option=False)] = None
    offset: Annotated[int, Parameter("Number of sessions to skip.", is_option=False)] = 0


@dataclass(frozen=True, slots=True)
class SessionName:
    id: Annotated[str, Parameter("Id or name of a session, or the id of one of its requests.")]
    quotes: Annotated[bool, Parameter("Quote the words of each first change, if they are stored.")] = False

    def __post_init__(self) -> None:
        check_id(self.id)
