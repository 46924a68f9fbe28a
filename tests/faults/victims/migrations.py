"""Migrations: files of every earlier version, opened by a process that is killed meanwhile."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sqlite_utils import Database

from kvproxy.index.store import SqliteStore
from kvproxy.index.store.opening import open_observations
from kvproxy.index.store.sqlite.connection import apply_steps, connect
from kvproxy.index.store.sqlite.schema import NAME, STEPS
from tests.faults.victims.victim import READY, Tell
from tests.index.entries import make_entry

_ENTRIES = 200
_SINCE = {"tags": 3, "backend": 3, "request_id": 3, "sealed": 6, "checksum": 7} | dict.fromkeys(
    ("stale_while_revalidate", "stale_if_error"), 9
)
"""The step that brought a column."""


class Migrations:
    """Tells `done` when the file is of today's version."""

    name = "migrations"
    lives = 1
    longest = 0.1

    def prepare(self, folder: Path, seed: int) -> None:
        made = 2 + seed % (len(STEPS) - 2)
        connection = connect(folder / "r.db")
        apply_steps(connection, NAME, STEPS[:made])
        entries = [make_entry(f"question {number}") for number in range(_ENTRIES)]
        rows = [
            {name: value for name, value in entry.row().items() if _SINCE.get(name, 0) <= made} for entry in entries
        ]
        vector = np.ones(3, np.float32).tobytes()
        database = Database(connection)
        database["responses"].insert_all(rows)
        database["vectors"].insert_all(
            {"id": entry.id, "embedder": "e", "vector": vector} | ({"namespace": "n"} if made >= 4 else {})
            for entry in entries
        )
        connection.commit()
        connection.close()

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        tell(READY)
        SqliteStore(folder / "r.db").close()
        open_observations(folder / "r.db").close()
        tell("done")

    def check(self, folder: Path, told: Sequence[str]) -> None:
        with sqlite3.connect(folder / "r.db") as connection:
            applied = connection.execute("select name from _sqlite_migrations where migration_set = ?", [NAME])
            count = len(applied.fetchall())
        connection.close()
        assert "done" not in told or count == len(STEPS)
        store, log = SqliteStore(folder / "r.db"), open_observations(folder / "r.db")
        assert store.check() == store.count() == _ENTRIES
        assert len(store.vector_ids("n", "e")[0]) == _ENTRIES
        assert {entry.prompt for entry in store.entries()} == {f"question {number}" for number in range(_ENTRIES)}
        assert log.summary()["observed"] == 0
        log.close()
        store.close()
