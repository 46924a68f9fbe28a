"""An empty journal, in a file and in PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproxy.journal.journal import StoredJournal, open_stored_journal
from kvproxy.settings.journal import JournalSettings
from tests.journal.sessions.requests import Sessions


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path or the URL of a journal that does not exist."""
    if request.param == "file":
        return str(tmp_path / "journal.db")
    url: str = request.getfixturevalue("empty_postgres")
    return url


@pytest.fixture
def journal(place: str) -> Iterator[StoredJournal]:
    opened = open_stored_journal(place, JournalSettings())
    yield opened
    opened.close()


@pytest.fixture
def sessions(place: str) -> Iterator[Sessions]:
    opened = Sessions(place)
    yield opened
    opened.close()
