"""An empty journal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproxy.journal.journal import FileJournal
from kvproxy.settings.journal import JournalSettings


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FileJournal]:
    opened = FileJournal(tmp_path / "journal.db", JournalSettings())
    yield opened
    opened.close()
