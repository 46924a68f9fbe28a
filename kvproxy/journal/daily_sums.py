"""Tables of the journal with sums by day, tenant, and model, with a bounded number of rows."""

from collections.abc import Sequence

from kvproxy.journal.databases.database import JournalDatabase
from kvproxy.units import utc_day

OTHERS = "(others)"
"""Name of the tenant, model, or tag in which further ones are summed."""
MAX_ROWS_OF_DAY = 10_000
MAX_ROWS_OF_TENANT = 1_000
"""Rows of one tenant on one day."""
DETAILED_DAYS = 400
"""Days after which the rows of a day are summed over tenants, models, and tags."""
_FOLDED = ("model", "tag")
_DAY = 86_400


def table_of_teams(table: str) -> str:
    """Return the name of the table with the same sums by team; it has no requests without a team."""
    return f"team_{table}"


class DailySums:
    """Adds up values of one batch, and writes them in the caller's transaction.

    Beyond `MAX_ROWS_OF_TENANT`, further models and tags of a tenant are summed in `OTHERS`; beyond `MAX_ROWS_OF_DAY`, also
    further tenants.

    Args:
        keys: key columns after `day`, of which the first is `tenant`.
        sums: columns with the sums.
    """

    def __init__(self, database: JournalDatabase, table: str, keys: Sequence[str], sums: Sequence[str]) -> None:
        self._database = database
        self._table = table
        self._keys = keys
        self._columns = ("day", *keys, *sums)
        self._sums = sums
        self._values: dict[tuple[str, ...], list[float]] = {}
        self._rows: dict[tuple[str, ...], int] = {}
        """Number of rows by day, and by day and tenant; at least the real number."""

    def add(self, time: float, key: Sequence[str], values: Sequence[float]) -> None:
        """Add values to the row of a key, on the UTC day of a time in seconds since the epoch."""
        row = self._bounded(utc_day(time), tuple(key))
        before = self._values.get(row)
        self._values[row] = (
            list(values) if before is None else [one + two for one, two in zip(before, values, strict=True)]
        )

    def _bounded(self, day: str, key: tuple[str, ...]) -> tuple[str, ...]:
        row, tenant = (day, *key), key[0]
        if row in self._values:
            return row
        is_day_full = self._count(day) >= MAX_ROWS_OF_DAY
        if (is_day_full or self._count(day, tenant) >= MAX_ROWS_OF_TENANT) and not self._exists(row):
            return (day, OTHERS if is_day_full else tenant, *map(self._fold, self._keys[1:], key[1:]))
        self._rows[day,] += 1
        self._rows[day, tenant] = self._count(day, tenant) + 1
        return row

    @staticmethod
    def _fold(column: str, value: str) -> str:
        return OTHERS if column in _FOLDED and value else value

    def _count(self, *of: str) -> int:
        if of not in self._rows:
            condition = " and ".join(f"{name} = ?" for name in self._columns[: len(of)])
            sql = f"select count(*) from {self._table} where {condition}"
            self._rows[of] = int(self._database.rows(sql, of)[0][0])
        return self._rows[of]

    def _exists(self, row: Sequence[str]) -> bool:
        condition = " and ".join(f"{name} = ?" for name in ("day", *self._keys))
        return bool(self._database.rows(f"select 1 from {self._table} where {condition}", row))

    def write(self) -> None:
        """Write the sums of the batch, and forget them."""
        self._database.executemany(
            f"insert into {self._table} ({', '.join(self._columns)}) values ({', '.join('?' * len(self._columns))})"
            f" {self._on_conflict()}",
            [(*row, *values) for row, values in self._values.items()],
        )
        self.clear()

    def clear(self) -> None:
        self._values.clear()
        self._rows.clear()

    def _on_conflict(self) -> str:
        added = ", ".join(f"{name} = {self._table}.{name} + excluded.{name}" for name in self._sums)
        return f"on conflict (day, {', '.join(self._keys)}) do update set {added}"

    def fold_old_days(self, now: float) -> None:
        """Sum the rows of each day before `DETAILED_DAYS` over tenants, models, and tags."""
        first = utc_day(now - DETAILED_DAYS * _DAY)
        is_detailed = f"day < ? and (tenant <> '{OTHERS}' or model <> '{OTHERS}')"
        folded = {
            "tenant": f"'{OTHERS}'",
            "model": f"'{OTHERS}'",
            "tag": f"case tag when '' then '' else '{OTHERS}' end",
        }
        keys = ", ".join(folded.get(name, name) for name in self._keys)
        sums = ", ".join(f"sum({name})" for name in self._sums)
        places = ", ".join(map(str, range(1, len(self._keys) + 2)))
        self._database.execute(
            f"insert into {self._table} ({', '.join(self._columns)}) select day, {keys}, {sums} from {self._table}"
            f" where {is_detailed} group by {places} {self._on_conflict()}",
            [first],
        )
        self._database.execute(f"delete from {self._table} where {is_detailed}", [first])


class DailySumsWithTeams:
    """Sums of all requests, and by team in `table_of_teams`. For the arguments and methods, see `DailySums`."""

    def __init__(self, database: JournalDatabase, table: str, keys: Sequence[str], sums: Sequence[str]) -> None:
        self._all = DailySums(database, table, keys, sums)
        self._of_teams = DailySums(database, table_of_teams(table), (*keys, "team"), sums)

    def add(self, time: float, key: Sequence[str], values: Sequence[float], team: str | None) -> None:
        self._all.add(time, key, values)
        if team is not None:
            self._of_teams.add(time, (*key, team), values)

    def write(self) -> None:
        self._all.write()
        self._of_teams.write()

    def clear(self) -> None:
        self._all.clear()
        self._of_teams.clear()

    def fold_old_days(self, now: float) -> None:
        self._all.fold_old_days(now)
        self._of_teams.fold_old_days(now)
