"""Writes entries to JSON lines, and reads them."""

import json
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from kvproxy.index.entry import Entry, new_id
from kvproxy.index.entry_redaction import Redactor, redact_entry
from kvproxy.index.errors import ImportFailed
from kvproxy.index.store.store import Store
from kvproxy.index.store.store_types import NewEntry

IMPORT_BATCH = 256
_PART_BYTES = 256 * 1024


def export_lines(store: Store) -> Iterator[bytes]:
    return (entry.export_line() for entry in store.entries())


def export_parts(store: Store) -> Iterator[bytes]:
    """Yield the lines in parts of about 256 KiB, because each part costs a change of threads."""
    part, size = list[bytes](), 0
    for line in export_lines(store):
        part.append(line)
        size += len(line)
        if size >= _PART_BYTES:
            yield b"".join(part)
            part, size = [], 0
    yield b"".join(part)


def read_lines(lines: bytes) -> list[Entry]:
    return list({entry.key: entry for entry in _entries(lines)}.values())


def new_entries(
    store: Store, entries: Iterable[Entry], is_servable: Callable[[Entry], bool] = lambda entry: True
) -> list[Entry]:
    """Return the servable entries that are not expired, and whose cache keys are not stored yet.

    An id that another entry has is replaced.
    """
    unstored, ids, now = [], set[str](), time.time()
    for entry in entries:
        if entry.freshness(now) != "expired" and not store.has_key(entry.key) and is_servable(entry):
            is_taken = entry.id in ids or store.get(entry.id) is not None
            unstored.append(replace(entry, id=new_id()) if is_taken else entry)
            ids.add(unstored[-1].id)
    return unstored


def _entries(lines: bytes) -> Iterator[Entry]:
    # `splitlines` would also split at U+2028, which texts may contain.
    for number, line in enumerate(lines.removeprefix(BOM_UTF8).split(b"\n"), 1):
        if line.strip():
            try:
                yield Entry.from_document(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                reason = _error_reason(error)
                raise ImportFailed(f"line {number} is no exported response ({reason}): nothing was imported") from None


def _error_reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the field {error} is missing"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "not JSON"
    return "not a JSON object" if isinstance(error, TypeError) else str(error)


def import_into(
    store: Store,
    entries: Sequence[Entry],
    redact: Redactor | None = None,
    is_servable: Callable[[Entry], bool] = lambda entry: True,
) -> int:
    """Store the servable entries whose cache keys are not stored yet, redacted, and return their number.

    The proxy embeds them at its next start.
    """
    imported = 0
    for start in range(0, len(entries), IMPORT_BATCH):
        new = new_entries(store, entries[start : start + IMPORT_BATCH], is_servable)
        redacted = new if redact is None else [redact_entry(entry, redact) for entry in new]
        puts = [NewEntry(entry) for entry in redacted if entry is not None]
        store.put_many(puts)
        imported += len(puts)
    return imported
