"""Writes entries to JSON lines, and reads them."""

import json
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvproxy.index.entry import Entry, new_id
from kvproxy.index.entry_redaction import Redactor, redact_entry
from kvproxy.index.errors import ImportFailed
from kvproxy.index.store.observations import Observation
from kvproxy.index.store.store import Store
from kvproxy.index.store.store_types import NewEntry

IMPORT_BATCH = 256
_PART_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ExportedEntry:
    """An entry of an export. `pinned`: it is evicted last. `rejected`: the last verdict of a person is a rejection."""

    entry: Entry
    pinned: bool = False
    rejected: bool = False


def export_lines(store: Store) -> Iterator[bytes]:
    pinned, rejected = set(store.pinned_ids()), store.observations.all_rejected_entries()
    for entry in store.entries():
        marks = (("pinned", entry.id in pinned), ("rejected", entry.id in rejected))
        yield entry.export_line(*(name for name, is_set in marks if is_set))


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


def read_lines(lines: bytes) -> list[ExportedEntry]:
    return list({exported.entry.key: exported for exported in _entries(lines)}.values())


def new_entries(
    store: Store, entries: Iterable[ExportedEntry], is_servable: Callable[[Entry], bool] = lambda entry: True
) -> list[ExportedEntry]:
    """Return the servable entries that are not expired, and whose cache keys are not stored yet.

    An id that another entry has is replaced.
    """
    unstored, ids, now = list[ExportedEntry](), set[str](), time.time()
    for exported in entries:
        entry = exported.entry
        if entry.freshness(now) != "expired" and not store.has_key(entry.key) and is_servable(entry):
            is_taken = entry.id in ids or store.get(entry.id) is not None
            unstored.append(replace(exported, entry=replace(entry, id=new_id())) if is_taken else exported)
            ids.add(unstored[-1].entry.id)
    return unstored


def _entries(lines: bytes) -> Iterator[ExportedEntry]:
    # `splitlines` would also split at U+2028, which texts may contain.
    for number, line in enumerate(lines.removeprefix(BOM_UTF8).split(b"\n"), 1):
        if line.strip():
            try:
                document = json.loads(line)
                entry = Entry.from_document(document)
                yield ExportedEntry(entry, document.get("pinned") is True, document.get("rejected") is True)
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
    entries: Sequence[ExportedEntry],
    redact: Redactor | None = None,
    is_servable: Callable[[Entry], bool] = lambda entry: True,
) -> int:
    """Store the servable entries whose cache keys are not stored yet, redacted, with their pins and rejections.

    Return their number. The proxy embeds them at its next start.
    """
    imported = 0
    for start in range(0, len(entries), IMPORT_BATCH):
        new = new_entries(store, entries[start : start + IMPORT_BATCH], is_servable)
        redacted = [each.entry if redact is None else redact_entry(each.entry, redact) for each in new]
        stored = [replace(each, entry=entry) for each, entry in zip(new, redacted, strict=True) if entry is not None]
        store.put_many([NewEntry(each.entry) for each in stored])
        for each in stored:
            if each.pinned:
                store.pin(each.entry.id, pinned=True)
        store.observations.add([rejection(each.entry) for each in stored if each.rejected])
        imported += len(stored)
    return imported


def rejection(entry: Entry) -> Observation:
    return Observation.from_verdict(entry.id, right=False, namespace=entry.namespace)
