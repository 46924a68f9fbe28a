"""Groups requests, and daily sums of requests, for the savings."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Protocol

from kvproxy.apis.request_directives import PROJECT_TAG, project_of, project_tags
from kvproxy.journal.groups import SavingsKey
from kvproxy.journal.reader import JournalReader, TotalRow
from kvproxy.journal.record import client_name
from kvproxy.journal.sums_filter import SumsFilter
from kvproxy.units import tenant_name

_SEPARATOR = "\t"
_SUMS = tuple(field.name for field in fields(TotalRow)[5:])


def counted_tags(tags: Sequence[str]) -> list[str]:
    """Return the tags by which a request is summed: of several projects only the request's own, so that it counts once."""
    others = project_tags(tags)[1:]
    return [tag for tag in tags if tag and tag not in others]


def client_of(tenant: str) -> str:
    """Return the name of a tenant's key, or else the tenant."""
    return client_name(tenant) or tenant_name(tenant)


def bill_name(day: str, team: str, tenant: str, model: str) -> str:
    """Return the name of a row of the bill."""
    return _SEPARATOR.join((day, team, client_of(tenant), model))


def split_bill_name(name: str) -> tuple[str, str, str, str]:
    """Return the day, the team, the client, and the model of a row of the bill."""
    day, team, client, model = name.split(_SEPARATOR, 3)
    return day, team, client, model


def is_counted(tags: str, tag: str | None) -> bool:
    """Return whether the sums of a tag count a request with these tags, separated by commas; None counts all requests."""
    return tag is None or tag in counted_tags(tags.split(","))


class GroupedRequest(Protocol):
    """The fields of a request by which savings are grouped; `day` is a UTC day, and `tags` are separated by commas."""

    @property
    def day(self) -> str: ...

    @property
    def layer(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def tags(self) -> str: ...

    @property
    def team(self) -> str | None: ...


def groups_of(request: GroupedRequest, by: SavingsKey) -> list[str]:
    """Return the names of the groups of a request, as in `grouped_totals`; only tags can be several."""
    if by == "tag":
        return counted_tags(request.tags.split(","))
    return [
        {
            "day": request.day,
            "layer": request.layer,
            "model": request.model,
            "tenant": request.tenant,
            "client": client_of(request.tenant),
            "project": project_of(request.tags.split(",")),
            "team": request.team or "",
            "bill": bill_name(request.day, request.team or "", request.tenant, request.model),
        }[by]
    ]


def grouped_totals(reader: JournalReader, by: SavingsKey, selection: SumsFilter) -> list[TotalRow]:
    """Return sums by group; see `JournalReader.totals`.

    Requests without a project, or a team, are a group with an empty name.
    """
    match by:
        case "client":
            return [replace(row, name=client_of(row.name)) for row in reader.totals("tenant", selection)]
        case "project":
            return list(_with_rest(_project_totals(reader, selection), reader.totals("day", selection)))
        case "team":
            return list(_with_rest(reader.totals("team", selection), reader.totals("day", selection)))
        case "bill":
            rows = grouped_totals(reader, "team", selection)
            return [replace(row, name=bill_name(row.day, row.name, row.tenant, row.model)) for row in rows]
        case _:
            return reader.totals(by, selection)


def _project_totals(reader: JournalReader, selection: SumsFilter) -> Iterator[TotalRow]:
    for row in reader.totals("tag", selection):
        if row.name.startswith(PROJECT_TAG):
            yield replace(row, name=row.name.removeprefix(PROJECT_TAG))


def _with_rest(rows: Iterable[TotalRow], every: Iterable[TotalRow]) -> Iterator[TotalRow]:
    """Yield the rows of groups, and what they leave of the sums of every request, as rows of a group without a name."""
    others = {_key(row): replace(row, name="") for row in every}
    for row in rows:
        yield row
        # Sums of many tenants or tags are folded, and the rows of both differ then.
        if (total := others.get(_key(row))) is not None:
            rest = {name: getattr(total, name) - getattr(row, name) for name in _SUMS}
            others[_key(row)] = replace(total, **rest)
    yield from (row for row in others.values() if row.requests or row.prompt_tokens or row.estimated_prompt_tokens)


def _key(row: TotalRow) -> tuple[str, str, str, str]:
    return row.layer, row.model, row.tenant, row.day
