"""Integer ids for repeated strings, such as tenants and models."""

import json
import sqlite3

from kvproxy.journal.regions import Regions

_MAX_LENGTH = 300
_MAX_CACHED = 50_000


class StringIds:
    """The table `names`. Every method may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}
        self._shapes: dict[tuple[str, ...], int] = {}
        self._names: dict[int, tuple[tuple[str, ...], int | None]] = {}

    def number(self, text: str | None) -> int | None:
        """The id of a string; a new string is inserted."""
        if text is None:
            return None
        number = self._numbers.get(text)
        return self._insert(text) if number is None else number

    def _insert(self, text: str) -> int:
        if len(self._numbers) >= _MAX_CACHED:
            self._numbers.clear()
        kept = text[:_MAX_LENGTH].encode("utf-8", "replace").decode()
        self._connection.execute("insert or ignore into names (name) values (?)", [kept])
        row = self._connection.execute("select number from names where name = ?", [kept]).fetchone()
        self._numbers[text] = int(row[0])
        return self._numbers[text]

    def forget(self) -> None:
        """Clear the cache after a rollback."""
        self._numbers.clear()
        self._shapes.clear()

    def shape(self, regions: Regions) -> int:
        """The id of the names of regions and the place of the question among them."""
        number = self._shapes.get(regions.names)
        if number is None:
            if len(self._shapes) >= _MAX_CACHED:
                self._shapes.clear()
            encoded = json.dumps([regions.question, *regions.names], ensure_ascii=True)
            self._connection.execute("insert or ignore into names (name) values (?)", [encoded])
            row = self._connection.execute("select number from names where name = ?", [encoded]).fetchone()
            number = self._shapes[regions.names] = int(row[0])
        return number

    def names(self, shape: int) -> tuple[tuple[str, ...], int | None]:
        """The names of regions, and the place of the question among them."""
        found = self._names.get(shape)
        if found is None:
            if len(self._names) >= _MAX_CACHED:
                self._names.clear()
            row = self._connection.execute("select name from names where number = ?", [shape]).fetchone()
            question, *names = json.loads(row[0])
            found = self._names[shape] = (tuple(names), question)
        return found
