"""What a transaction of the journal sees of prompts, and leaves of them, whatever earlier ones hold in memory."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.journal import prompt_rows
from kvproxy.journal.prompt_rows import NewPrompt, PromptRows
from kvproxy.journal.schema import open_file

KEYS = [bytes([65 + place]) * 8 for place in range(6)]
QUESTIONS = [b"question 0", b"question 1", None]
MOST = 2

Row = dict[str, Any]
Op = tuple[str, bytes, int]
OPS = st.tuples(
    st.sampled_from(["get", "add", "add", "entry", "alike", "look for", "asked"]),
    st.sampled_from(KEYS),
    st.integers(0, 2),
)
TRANSACTIONS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(KEYS), max_size=4, unique=True),
        st.lists(OPS, max_size=12),
        st.sampled_from(["", "", *KEYS]),
    ),
    min_size=1,
    max_size=6,
)


@contextmanager
def journal() -> Iterator[tuple[Path, sqlite3.Connection]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        connection = open_file(path)
        try:
            yield path, connection
        finally:
            connection.close()


class Model:
    """The prompts as plain rows, without a file."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Row] = {}

    def add(self, key: bytes, question: bytes | None) -> Row:
        number = max((row["number"] for row in self.rows.values()), default=0) + 1
        row = {"number": number, "question": question, "entry": None, "last": None}
        self.rows[key] = row
        return row

    def alike(self, question: bytes, but: bytes) -> list[tuple[int, bytes]]:
        found = [(row["number"], key) for key, row in self.rows.items() if row["question"] == question]
        # One more is read than is told, since the prompt itself may be among them.
        return [each for each in sorted(found, reverse=True)[: MOST + 1] if each[1] != but][:MOST]

    def asked(self, record: int, number: int) -> None:
        for row in self.rows.values():
            if row["number"] == number:
                row["last"] = max(record, row["last"] or 0)


def _do(rows: PromptRows, model: Model, what: str, key: bytes, place: int, record: int) -> None:
    """One step of a transaction, on both."""
    question = QUESTIONS[place]
    there = model.rows.get(key)
    if what == "get":
        row = rows.get(key)
        told = None if row is None else (row.number, row.entry, row.last)
        assert told == (None if there is None else (there["number"], there["entry"], there["last"]))
    elif what == "add" and there is None:
        assert rows.get(key) is None
        said = NewPrompt(question, None if question is None else b"regions", None if question is None else 1)
        assert rows.add(key, said).number == model.add(key, question)["number"]
    elif what == "entry" and there is not None:
        row = rows.get(key)
        assert row is not None
        row.entry, row.changed = f"entry {record}", True
        there["entry"] = f"entry {record}"
    elif what == "alike" and question is not None:
        # As many of the added ones as there are come before those of the file.
        told = [(each.number, each.key) for each in rows.same_question(question, key)]
        assert told == model.alike(question, key)
    elif what == "look for":
        rows.read_similar([question for question in QUESTIONS if question is not None])
    elif what == "asked" and there is not None:
        rows.set_last_record(record, there["number"])
        model.asked(record, there["number"])


def _in_file(path: Path) -> dict[bytes, Row]:
    with sqlite3.connect(path) as connection:
        found = connection.execute("select key, number, question, entry, last from prompts").fetchall()
    connection.close()
    names = ("number", "question", "entry", "last")
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in found}


@given(TRANSACTIONS, st.sampled_from([0, 3, 100]))
def test_transactions_see_and_leave_what_is_there(
    transactions: list[tuple[list[bytes], list[Op], Any]], kept: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, journal() as (path, connection):
        patch.setattr(prompt_rows, "_MAX_CACHED", kept)
        rows, model, record = PromptRows(connection, MOST), Model(), 0
        for keys, ops, theirs in transactions:
            with connection:
                connection.execute("begin immediate")
                rows.begin(keys)
                for what, key, place in ops:
                    record += 1
                    _do(rows, model, what, key, place, record)
                rows.write()
            assert len(rows._cache) <= max(kept, len(KEYS))
            assert _in_file(path) == model.rows
            if theirs in model.rows:
                # Another process changes what this one holds in memory.
                with sqlite3.connect(path) as other:
                    other.execute("update prompts set entry = 'theirs' where key = ?", [theirs])
                other.close()
                model.rows[theirs]["entry"] = "theirs"


def test_few_prompts_of_earlier_transactions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_rows, "_MAX_CACHED", 3)
    with journal() as (_, connection):
        rows = PromptRows(connection, MOST)
        most = 0
        for place, key in enumerate(KEYS):
            with connection:
                connection.execute("begin immediate")
                rows.begin([key])
                rows.add(key, NewPrompt(b"question", b"regions", place))
                rows.write()
            most = max(most, len(rows._cache))
        assert most == 3
