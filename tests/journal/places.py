"""Journals in files and in PostgreSQL."""

import time
from collections.abc import Callable
from pathlib import Path

from kvproxy.index.store import is_url
from kvproxy.journal.databases.database import JournalDatabase
from kvproxy.journal.databases.postgres import PostgresJournalDatabase
from kvproxy.journal.databases.sqlite import open_file
from kvproxy.journal.journal import FileJournal, SharedJournal, StoredJournal
from kvproxy.settings.journal import JournalSettings


def open_stored(place: str, settings: JournalSettings, clock: Callable[[], float] = time.time) -> StoredJournal:
    """Open the journal at a path or a URL."""
    if is_url(place):
        return SharedJournal(place, "proxy:8484", settings, clock)
    return FileJournal(Path(place), settings, clock)


def open_database(place: str) -> JournalDatabase:
    """Open the database of a journal for writing."""
    if not is_url(place):
        return open_file(Path(place))
    database = PostgresJournalDatabase(place, writable=True)
    database.connect()
    return database
