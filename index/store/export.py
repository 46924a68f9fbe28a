"""Export of stored responses as JSON lines, and their import."""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence

from kvproxy.index.entry import Entry
from kvproxy.index.errors import ImportFailed
from kvproxy.index.redaction import Redactor, redacted_all
from kvproxy.index.store import NewEntry, Store

IMPORT_BATCH = 256


def export_lines(store: Store) -> Iterator[bytes]:
    """Every entry as a line, oldest first, each with its end."""
    return (entry.line() for entry in store.entries())


def read_lines(lines: bytes) -> list[Entry]:
    """Entries of an export, one a line; of several with a key the last.

    Raises:
        ImportFailed: a line is no exported response; the message names it.
    """
    return list({entry.key: entry for entry in _entries(lines)}.values())


def _entries(lines: bytes) -> Iterator[Entry]:
    # Other ends of lines, such as U+2028, may stand inside a text.
    for number, line in enumerate(lines.removeprefix(BOM_UTF8).split(b"\n"), 1):
        if line.strip():
            try:
                yield Entry.from_document(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ImportFailed(f"line {number} is no exported response ({error!r}): nothing was imported") from None


def import_into(store: Store, entries: Sequence[Entry], redact: Redactor | None = None) -> int:
    """Put those entries into a store whose keys it lacks, without what must not be stored; how many.

    Their vectors are made when a proxy opens the store.
    """
    imported = 0
    for start in range(0, len(entries), IMPORT_BATCH):
        fresh = [entry for entry in entries[start : start + IMPORT_BATCH] if not store.has_key(entry.key)]
        puts = [NewEntry(entry) for entry in redacted_all(fresh, redact)]
        store.put_many(puts)
        imported += len(puts)
    return imported
