"""Selects sums of whole UTC days, and the records of these days."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kvproxy.journal.daily_sums import table_of_teams
from kvproxy.journal.period import start_time
from kvproxy.journal.record import OF_TAG, OF_TENANT
from kvproxy.settings.access import CLIENT_PREFIX
from kvproxy.units import start_of_utc_day, utc_day

_DAY = 86_400.0
_LAST_DAY = "9999-12-31"
_TENANT_OF_TEAM = f"'{CLIENT_PREFIX}' || team || '/'"


@dataclass(frozen=True, slots=True)
class SumsFilter:
    """Selects the requests of UTC days such as 2026-11-21, of a tenant, for a model, and of a team; None selects all.

    Attributes:
        first_day, last_day: both inclusive.
        tenant: a tenant, or the name of a client.
        tag: a tag of requests; only the sums of `totals` have tags.
        by_members: only requests of clients whose team was another client.
    """

    first_day: str | None = None
    last_day: str | None = None
    tenant: str | None = None
    model: str | None = None
    team: str | None = None
    by_members: bool = False
    tag: str | None = None

    def table(self, sums: str, by: str | None = None) -> str:
        """Return the table with the selected ones of the sums of `totals` or `prompt_tokens`, and with the column `by`."""
        has_team = by == "team" or self.team is not None or self.by_members
        return table_of_teams(sums) if has_team else sums

    def sql(self) -> tuple[str, list[object]]:
        """Return a condition on the columns `day`, `tenant`, and `model` of a table of sums, and its values."""
        conditions: list[tuple[str, list[object]]] = [
            ("day between ? and ?", [self.first_day or "", self.last_day or _LAST_DAY])
        ]
        if self.tenant is not None:
            client = f"{CLIENT_PREFIX}{self.tenant}/"
            of_tenant = "(tenant = ? or substr(tenant || '/', 1, length(?)) = ?)"
            conditions.append((of_tenant, [self.tenant, client, client]))
        if self.by_members:
            conditions.append(
                (f"substr(tenant || '/', 1, length(team) + {len(CLIENT_PREFIX) + 1}) <> {_TENANT_OF_TEAM}", [])
            )
        return _joined([*conditions, *self._of_names()])

    def records_sql(self) -> tuple[str, list[object]]:
        """Return a condition on the view `requests` with the alias `r`, and its values."""
        conditions: list[tuple[str, list[object]]] = [("r.time >= ? and r.time < ?", [*self.times])]
        if self.tenant is not None:
            conditions.append((OF_TENANT, [self.tenant, self.tenant]))
        if self.by_members:
            conditions.append(("client <> team", []))
        if self.tag is not None:
            conditions.append((OF_TAG, [f",{self.tag},"]))
        return _joined([*conditions, *self._of_names()])

    def _of_names(self) -> list[tuple[str, list[object]]]:
        names = {"model": self.model, "team": self.team}
        return [(f"{column} = ?", [name]) for column, name in names.items() if name is not None]

    @property
    def times(self) -> tuple[float, float]:
        """The start, and the exclusive end, in seconds since the epoch."""
        start = 0.0 if self.first_day is None else start_of_utc_day(self.first_day)
        return start, math.inf if self.last_day is None else start_of_utc_day(self.last_day) + _DAY


def _joined(conditions: Sequence[tuple[str, list[object]]]) -> tuple[str, list[object]]:
    return " and ".join(sql for sql, _ in conditions), [value for _, values in conditions for value in values]


def sums_filter(
    since: float | datetime | None = None,
    until: float | None = None,
    tenant: str | None = None,
    model: str | None = None,
    team: str | None = None,
) -> SumsFilter:
    """Return a filter of all UTC days with a part of a period; see `start_time` for its arguments. Raises InvalidRequest."""
    start = start_time(since, until)
    last = None if until is None else utc_day(math.nextafter(until, 0.0))
    return SumsFilter(None if start is None else utc_day(start), last, tenant, model, team)
