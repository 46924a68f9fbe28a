"""The journal: records that come faster than they are written."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from kvproxy.exchange import Exchange
from kvproxy.journal.journal import FileJournal
from kvproxy.journal.reader import Query, Reader
from kvproxy.settings.journal import JournalSettings
from tests.faults.victims.victim import READY, Tell
from tests.requests import api_request


class Journalled:
    """Tells `NAME` of requests whose records are written, some at a time."""

    name = "journal"
    lives = 10
    longest = 0.12

    def prepare(self, folder: Path, seed: int) -> None:
        """An empty folder."""

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        journal = FileJournal(folder / "journal.db", JournalSettings())
        tell(READY)
        for batch in range(10**6):
            names = [f"{seed}-{batch}-{number}" for number in range(7)]
            for name in names:
                asked = api_request({"messages": [{"role": "user", "content": name}]})
                journal.add(Exchange("chat", name, request=asked))
            journal.flush()
            assert journal.lost == 0
            for name in names:
                tell(name)

    def check(self, folder: Path, told: Sequence[str]) -> None:
        FileJournal(folder / "journal.db", JournalSettings()).close()
        with contextlib.closing(Reader(folder / "journal.db")) as reader:
            records = reader.records(Query(limit=10**6))
        found = [record.request_id for record in records]
        assert set(told) <= set(found), "a record is lost"
        assert len(set(found)) == len(found), "a record stands twice"
