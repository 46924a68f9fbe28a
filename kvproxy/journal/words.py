"""Words that come again and again, kept once in the journal's file, and written as numbers."""

import json
import sqlite3

from kvproxy.journal.regions import Regions

_LONGEST = 300
_MOST = 50_000
"""Words that are held in memory."""


class Words:
    """Numbers of words. Methods may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}
        self._shapes: dict[tuple[str, ...], int] = {}
        self._names: dict[int, tuple[tuple[str, ...], int | None]] = {}

    def number(self, word: str | None) -> int | None:
        """A word's number; the word is kept if it is new."""
        if word is None:
            return None
        number = self._numbers.get(word)
        return self._learn(word) if number is None else number

    def _learn(self, word: str) -> int:
        if len(self._numbers) >= _MOST:
            self._numbers.clear()
        kept = word[:_LONGEST].encode("utf-8", "replace").decode()
        self._connection.execute("insert or ignore into names (name) values (?)", [kept])
        row = self._connection.execute("select number from names where name = ?", [kept]).fetchone()
        self._numbers[word] = int(row[0])
        return self._numbers[word]

    def forget(self) -> None:
        """After a transaction that was undone: what it kept is not there."""
        self._numbers.clear()
        self._shapes.clear()

    def shape(self, regions: Regions) -> int:
        """The number of some regions' names, and of which of them asks."""
        number = self._shapes.get(regions.names)
        if number is None:
            if len(self._shapes) >= _MOST:
                self._shapes.clear()
            text = json.dumps([regions.question, *regions.names], ensure_ascii=True)
            self._connection.execute("insert or ignore into names (name) values (?)", [text])
            row = self._connection.execute("select number from names where name = ?", [text]).fetchone()
            number = self._shapes[regions.names] = int(row[0])
        return number

    def names(self, shape: int) -> tuple[tuple[str, ...], int | None]:
        """The regions' names, and the place of the one that asks."""
        found = self._names.get(shape)
        if found is None:
            if len(self._names) >= _MOST:
                self._names.clear()
            row = self._connection.execute("select name from names where number = ?", [shape]).fetchone()
            question, *names = json.loads(row[0])
            found = self._names[shape] = (tuple(names), question)
        return found
