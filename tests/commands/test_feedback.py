"""Verdicts from the command line, on the store of a stopped proxy."""

import time
from pathlib import Path

from kvproxy.index.store import SqliteStore
from kvproxy.index.store.open_store import open_observations
from tests.commands.run import kvproxy, result
from tests.index.entries import make_entry


def test_reject_and_approve_in_a_file(tmp_path: Path) -> None:
    path, entry = tmp_path / "responses.db", make_entry("What is a block?", created=time.time())
    store = SqliteStore(path)
    store.put(entry)
    store.close()

    def rejected() -> int:
        observations = open_observations(path)
        try:
            return observations.summary()["rejected"]
        finally:
            observations.close()

    assert result("cache", "reject", entry.id[:8], "--store", path) == {"id": entry.id, "right": False}
    assert rejected() == 1
    assert result("cache", "stats", "--store", path)["semantic"]["learned"]["rejected"] == 1
    assert "approved" in kvproxy("cache", "approve", entry.id, "--store", path).stdout
    assert rejected() == 0
    assert kvproxy("cache", "reject", "nope", "--store", path).returncode == 3
    asked = kvproxy("cache", "reject", entry.id, "--question", "x", "--store", path)
    assert (asked.returncode, "running proxy" in asked.stderr) == (2, True)
