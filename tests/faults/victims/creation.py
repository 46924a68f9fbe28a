"""A process is killed while it creates a store."""

from collections.abc import Sequence
from pathlib import Path

from kvproxy.index.store import SqliteStore
from kvproxy.index.store.opening import open_observations
from tests.faults.victims.victim import READY, Tell
from tests.index.entries import make_entry


class Creation:
    """Tells `done` when the store is open."""

    name = "creation"
    lives = 1
    longest = 0.03

    def prepare(self, folder: Path, seed: int) -> None:
        """Nothing: the file does not exist."""

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        tell(READY)
        SqliteStore(folder / "r.db").close()
        tell("done")

    def check(self, folder: Path, told: Sequence[str]) -> None:
        store, observations = SqliteStore(folder / "r.db"), open_observations(folder / "r.db")
        store.put(make_entry("one"))
        assert store.check() == store.count() == 1
        assert observations.summary()["observed"] == 0
        observations.close()
        store.close()
