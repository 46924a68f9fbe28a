import json
import sqlite3

from kvproxy.journal.request_regions import DIGEST_BYTES, Regions

_MAX_LENGTH = 300
_MAX_CACHED = 50_000


class StringIds:
    """Reads and writes ids of strings in the table `names`. Methods may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}
        self._shapes: dict[int, tuple[tuple[str, ...], int | None]] = {}

    def id_of(self, text: str) -> int:
        """Return the id of a string; a new string is inserted."""
        return self._id(text[:_MAX_LENGTH].encode("utf-8", "replace").decode())

    def shape_id(self, regions: Regions) -> int:
        """Return the id of the region names and the question's index, stored as one string."""
        return self._id(json.dumps([regions.question, *regions.names]))

    def _id(self, text: str) -> int:
        if text not in self._numbers:
            if len(self._numbers) >= _MAX_CACHED:
                self._numbers.clear()
            self._connection.execute("insert or ignore into names (name) values (?)", [text])
            row = self._connection.execute("select number from names where name = ?", [text]).fetchone()
            self._numbers[text] = int(row[0])
        return self._numbers[text]

    def forget(self) -> None:
        """Drop all cached ids, since a rollback may have removed their rows."""
        self._numbers.clear()
        self._shapes.clear()

    def regions(self, digests: bytes, shape: int) -> Regions:
        """Decode regions from their concatenated digests, and the result of `shape_id`."""
        if shape not in self._shapes:
            if len(self._shapes) >= _MAX_CACHED:
                self._shapes.clear()
            row = self._connection.execute("select name from names where number = ?", [shape]).fetchone()
            question, *names = json.loads(row[0])
            self._shapes[shape] = tuple(names), question
        names, question = self._shapes[shape]
        return Regions(
            names, tuple(digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)), question
        )
