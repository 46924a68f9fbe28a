import json
from array import array

from kvproxy.journal.databases.database import JournalDatabase
from kvproxy.journal.request_regions import DIGEST_BYTES, Regions

_MAX_LENGTH = 300
_MAX_CACHED = 50_000


class StringIds:
    """Reads and writes ids of strings in the table `names`. Methods may raise JournalFailed."""

    def __init__(self, database: JournalDatabase) -> None:
        self._database = database
        self._numbers: dict[str, int] = {}
        self._shapes: dict[int, tuple[tuple[str, ...], int | None]] = {}

    def id_of(self, text: str) -> int:
        return self._id(text[:_MAX_LENGTH].encode("utf-8", "replace").decode())

    def shape_id(self, regions: Regions) -> int:
        """Return the id of `Regions.names` and `Regions.question`, which many requests have in common."""
        return self._id(json.dumps([regions.question, *regions.names]))

    def _id(self, text: str) -> int:
        if text not in self._numbers:
            if len(self._numbers) >= _MAX_CACHED:
                self._numbers.clear()
            self._database.execute("insert into names (name) values (?) on conflict do nothing", [text])
            self._numbers[text] = int(self._database.rows("select number from names where name = ?", [text])[0][0])
        return self._numbers[text]

    def on_rollback(self) -> None:
        self._numbers.clear()
        self._shapes.clear()

    def regions(self, digests: bytes, shape: int, sizes: bytes = b"") -> Regions:
        if shape not in self._shapes:
            if len(self._shapes) >= _MAX_CACHED:
                self._shapes.clear()
            ((name,),) = self._database.rows("select name from names where number = ?", [shape])
            question, *names = json.loads(name)
            self._shapes[shape] = tuple(names), question
        names, question = self._shapes[shape]
        parts = tuple(digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES))
        return Regions(names, parts, question, tuple(array("I", sizes)))
