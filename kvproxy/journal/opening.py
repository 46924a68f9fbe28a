"""Opens the journal that the settings describe, and has the store tell it what goes."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvproxy.index import store as stored
from kvproxy.index.redactor import Redactor
from kvproxy.journal.journal import FileJournal, Journal, NoJournal
from kvproxy.journal.past import Gone
from kvproxy.journal.schema import FILE
from kvproxy.settings.journal import JournalSettings


def open_journal(
    data: Path,
    settings: JournalSettings,
    store: stored.Store,
    clock: Callable[[], float] = time.time,
    redact: Redactor | None = None,
) -> Journal:
    """The journal of a data folder; one that keeps nothing where it is off.

    Args:
        data: the folder.
        settings: how much is kept.
        store: the responses; what goes from there is noted.
        clock: seconds since the epoch.
        redact: takes out of texts what must not be kept.

    Raises:
        SettingsError: its file cannot be used, or it would keep texts that must not be kept as they are.
    """
    if not settings.enabled:
        return NoJournal()
    journal = FileJournal(data / FILE, settings, clock, redact)

    def went(entries: Sequence[stored.Gone]) -> None:
        now = clock()
        journal.gone(Gone(each.key, each.why, now) for each in entries if each.why not in (None, "replaced"))

    store.when_gone.append(went)
    return journal
