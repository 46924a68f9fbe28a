"""Selects records by a condition over fields that the database lacks, such as costs."""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields

from kvproxy.apis.json import dumps
from kvproxy.errors import InvalidRequest
from kvproxy.journal.record import RecordWithQuestions

_NAMES = tuple(field.name for field in fields(RecordWithQuestions))


def named_fields(condition: str) -> list[str]:
    """Return the fields of a record that an SQL condition names."""
    words = set(re.findall(r"\w+", re.sub(r"'[^']*'", "", condition.lower())))
    return [name for name in _NAMES if name in words]


def invalid_condition(error: Exception) -> InvalidRequest:
    """Return the error for a condition that is no SQL, or names an unknown field."""
    return InvalidRequest(
        f"the journal cannot run this query ({error}): --where takes an SQL condition over the fields {', '.join(_NAMES)}"
    )


def matching_numbers(condition: str, pages: Iterable[Sequence[RecordWithQuestions]]) -> Iterator[list[int]]:
    """Yield the numbers of the records of each page that satisfy a condition in SQLite's SQL. Raises InvalidRequest."""
    names = sorted({"number", *named_fields(condition)})
    insert = f"insert into requests ({', '.join(names)}) values ({', '.join('?' * len(names))})"
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"create table requests ({', '.join(_NAMES)})")
        try:
            # A wrong name is an error without records, too.
            sql = f"select number from requests where ({condition})"
            database.execute(sql)
            for rows in pages:
                database.execute("delete from requests")
                database.executemany(insert, [[_sql_value(getattr(row, name)) for name in names] for row in rows])
                yield [number for (number,) in database.execute(sql)]
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise invalid_condition(error) from None


def _sql_value(value: object) -> object:
    """Return a value for SQLite: JSON for an object, such as the lost tokens by cause."""
    return dumps(value).decode() if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class NumberedRecords:
    """Selects records by their numbers; see `RecordFilter`."""

    numbers: Sequence[int]
    layer: str | None
    limit: int | None

    def sql(self) -> tuple[str, list[object]]:
        # SQLite and PostgreSQL share a syntax for the names of a JSON object, but not for the items of an array.
        names = dumps({str(number): 0 for number in self.numbers}).decode()
        return " where number in (select cast(key as bigint) from json_each(?))", [names]
