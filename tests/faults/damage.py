"""Damaged files: pages, logs, and chunks with flipped bits, zeroed or exchanged parts, and torn ends.

Only stored content is served.
"""

import contextlib
import logging
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import NewEntry, open_store
from kvproxy.tiers.local_stores import DiskStore
from tests.faults.harness import Advance, Finding, split
from tests.faults.victims import has_chunk, put_chunk
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

_ENTRIES, _CHUNKS, _PAYLOAD = 120, 6, 5_000
_PAGE = 4096


def run(rounds: int, seed: int, advance: Advance) -> list[Finding]:
    """Damage one file in each round, the kinds of files in turn."""
    findings = []
    kinds = (
        ("pages of the database", "r.db", _check_database),
        ("log of the database", "r.db-wal", _check_database),
        ("chunks", "chunks/*/*", _check_chunks),
    )
    with tempfile.TemporaryDirectory(prefix="kvproxy-faults-") as name, _without_logs():
        template, copy = Path(name) / "template", Path(name) / "copy"
        entries = _fill(template, seed)
        for (kind, files, check), share in split(rounds, kinds):
            with Finding(f"damaged: {kind}").timed() as finding:
                for number in range(share):
                    generator = random.Random(f"{kind} {seed} {number}")
                    shutil.copytree(template, copy)
                    file = generator.choice(sorted(copy.glob(files)))
                    file.write_bytes(harmed(file.read_bytes(), generator))
                    finding.rounds += 1
                    with finding.catch(f"seed {seed}, round {number}"):
                        check(copy, entries, finding)
                    shutil.rmtree(copy)
                    advance()
            findings.append(finding)
    return findings


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def harmed(data: bytes, generator: random.Random) -> bytes:
    """Return the data with one random fault."""
    at, length = generator.randrange(len(data)), generator.choice([1, 16, 512, _PAGE])
    start = at - at % length
    match generator.choice(["bit", "zeros", "noise", "torn", "moved", "tail"]):
        case "bit":
            return data[:at] + bytes([data[at] ^ 1 << generator.randrange(8)]) + data[at + 1 :]
        case "zeros":
            return data[:start] + bytes(len(data[start : start + length])) + data[start + length :]
        case "noise":
            return data[:start] + generator.randbytes(len(data[start : start + length])) + data[start + length :]
        case "torn":
            return data[:at]
        case "moved":
            other = generator.randrange(len(data))
            other -= other % length
            part = data[other : other + length].ljust(len(data[start : start + length]), b"\0")
            return data[:start] + part + data[start + length :]
        case _:
            return data + generator.randbytes(length)


def _fill(folder: Path, seed: int) -> list[Entry]:
    """Store responses with vectors, the last ones only in the log, and chunks."""
    folder.mkdir()
    store, embedder = open_store(folder / "open.db"), HashEmbedder()
    entries = [
        make_entry(f"question {seed} {number}", id=f"{number:032x}", namespace="n0", response=b'"%d"' % number * 60)
        for number in range(_ENTRIES)
    ]
    for part in (entries[:100], entries[100:]):
        puts = [NewEntry(entry, embedder.embed([entry.prompt])[0], embedder.name) for entry in part]
        store.put_many(puts)
        if part[0] is entries[0]:
            store.database._writer.execute("pragma wal_checkpoint(truncate)")
    # A killed process leaves the log beside the database.
    for file in folder.glob("open.db*"):
        shutil.copy(file, folder / file.name.replace("open", "r"))
    store.close()
    for file in [*folder.glob("open.db*"), folder / "r.db-shm"]:
        file.unlink(missing_ok=True)
    chunks = DiskStore(folder / "chunks", 1 << 30)
    for number in range(_CHUNKS):
        put_chunk(chunks, number, _PAYLOAD)
    return entries


def _check_database(folder: Path, entries: Sequence[Entry], finding: Finding) -> None:
    try:
        store = open_store(folder / "r.db", clock=lambda: 2000.0)
    except CacheStoreError:
        finding.counts["refused to open"] += 1
        return
    served = 0
    for entry in entries:
        try:
            found = store.find(entry.key)
            by_id = store.get(entry.id)
        except CacheStoreError:
            continue
        served += found is not None
        for each in (found, by_id):
            assert each is None or _content(each) == _content(entry), f"{each} is served for {entry}"
    store.close()
    finding.counts["all served"] += served == len(entries)
    finding.counts["some served"] += 0 < served < len(entries)
    finding.counts["none served"] += served == 0


def _content(entry: Entry) -> tuple[object, ...]:
    return entry.key, entry.namespace, entry.tenant, entry.prompt, entry.response


def _check_chunks(folder: Path, entries: Sequence[Entry], finding: Finding) -> None:
    store = DiskStore(folder / "chunks", 1 << 30)
    for number in range(_CHUNKS):
        finding.counts["whole" if has_chunk(store, number, _PAYLOAD, damaged=True) else "skipped"] += 1
