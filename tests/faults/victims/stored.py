"""The store of responses: four threads that put, remove and expire, under a limit every other time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kvproxy.index.store import Capacity, SqliteStore
from tests.faults.victims.victim import READY, Tell
from tests.index.entries import make_entry

_LIMIT = 200
_NOW = 2000.0


class Stored:
    """Tells `+id` of what is stored, `~id` before it is removed, `-id` afterwards."""

    name = "store"
    lives = 20
    longest = 0.12

    def prepare(self, folder: Path, seed: int) -> None:
        if seed % 2:
            (folder / "limited").touch()

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        limited = (folder / "limited").exists()
        store = SqliteStore(folder / "r.db", clock=lambda: _NOW, capacity=Capacity(_LIMIT if limited else None))
        tell(READY)

        def put(worker: int) -> None:
            for number in range(10**6):
                entry = make_entry(f"question {seed} {worker} {number}", tags=("t",), response=b'"x"' * 700)
                store.put(entry, np.full(8, worker, np.float32), "e")
                tell(f"+{entry.id}")
                if number % 7 == 3:
                    tell(f"~{entry.id}")
                    store.delete([entry.id])
                    tell(f"-{entry.id}")
                if number % 5 == 0:
                    store.put(make_entry(f"old {seed} {worker} {number}", expires=_NOW - 1))
                    store.record_hit(entry.id)
                    store.flush()
                    store.expire()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(put, range(4)))

    def check(self, folder: Path, told: Sequence[str]) -> None:
        store = SqliteStore(folder / "r.db", clock=lambda: _NOW)
        kept = set(store.ids())
        assert store.check() == store.count() == len(kept)
        by_sign = {sign: {line[1:] for line in told if line[0] == sign} for sign in "+~-"}
        assert not by_sign["-"] & kept, "what was removed is back"
        if (folder / "limited").exists():
            assert len(kept) <= _LIMIT
        else:
            lost = by_sign["+"] - by_sign["~"] - kept
            assert not lost, f"{len(lost)} responses are lost that were acknowledged"
        assert {id.decode() for id in store.vector_ids("n", "e")[1]} <= kept
        assert all(
            entry.response == b'"x"' * 700 for entry in store.list_entries() if entry.prompt.startswith("question")
        )
        assert store.stats()["tags"].get("t", 0) == sum(
            entry.prompt.startswith("question") for entry in store.entries()
        )
        store.close()
