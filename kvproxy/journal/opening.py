"""Opens the journal that the settings describe, and has the store tell it what goes."""

import time
from collections.abc import Sequence
from pathlib import Path

from kvproxy.index.store import Gone, Store
from kvproxy.journal.journal import FileJournal, Journal, NoJournal
from kvproxy.journal.schema import FILE
from kvproxy.settings.journal import JournalSettings


def open_journal(data: Path, settings: JournalSettings, store: Store) -> Journal:
    """The journal of a data folder; one that keeps nothing where it is off.

    Raises:
        SettingsError: its file cannot be used.
    """
    if not settings.enabled:
        return NoJournal()
    journal = FileJournal(data / FILE, settings)

    def went(entries: Sequence[Gone]) -> None:
        now = time.time()
        journal.gone((each.key, each.why, now) for each in entries if each.why not in (None, "replaced"))

    store.when_gone.append(went)
    return journal
