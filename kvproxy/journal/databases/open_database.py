"""Opens a journal for reading, in a file or in PostgreSQL."""

from pathlib import Path

from kvproxy.errors import KvproxyError, StoreUnavailable
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store_location import is_url
from kvproxy.journal.databases.database import JournalDatabase, JournalFailed
from kvproxy.optional_packages import install_command


def open_to_read(location: str | Path) -> JournalDatabase:
    """Open a journal for reading, given its path or its URL of PostgreSQL. Raises NotFound or KvproxyError."""
    # Each database is imported when it is used: one of them needs an optional driver.
    if isinstance(location, Path) or not is_url(location):
        from kvproxy.journal.databases.sqlite import open_to_read as open_file

        return open_file(Path(location))
    try:
        from kvproxy.journal.databases.postgres import PostgresJournalDatabase

        database = PostgresJournalDatabase(location, writable=False)
    except ModuleNotFoundError:
        raise KvproxyError(f"a journal in PostgreSQL needs its driver: {install_command('postgres')}") from None
    except CacheStoreError as error:
        raise KvproxyError(str(error)) from None
    try:
        database.connect()
    except JournalFailed as error:
        raise StoreUnavailable(f"cannot read the journal {database.name}: {error}") from None
    return database
