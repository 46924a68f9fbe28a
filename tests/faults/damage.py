"""Damaged files: pages, logs, graphs and chunks with flipped bits, zeroed or exchanged parts, and torn ends.

Whatever is damaged, what is served is what was stored, or nothing. `python -m tests.faults.damage --rounds 3000`
"""

import logging
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import NewEntry, SqliteStore
from kvproxy.tiers.codec import header_bytes, read_payload, write_header
from kvproxy.tiers.disk import DiskStore
from tests.faults.harness import Advance, Finding, Harness, Timer, main
from tests.faults.lives import scratch
from tests.faults.victims.graphs import SmallGraphs
from tests.faults.victims.tiers import name_of
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

_ENTRIES, _CHUNKS, _PAYLOAD = 120, 6, 5_000
_PAGE = 4096


def run(rounds: int, seed: int, advance: Advance) -> list[Finding]:
    """Damage so many files in all, each kind of file as often as the others."""
    findings = []
    with scratch() as folder:
        entries = _store(folder / "template", seed)
        kinds: tuple[tuple[str, str, Callable[[Path, Sequence[Entry], Finding], None]], ...] = (
            ("pages of the database", "r.db", _look_at_database),
            ("log of the database", "r.db-wal", _look_at_database),
            ("graphs", "r.db-index/*", _look_at_graphs),
            ("chunks", "chunks/*/*", _look_at_chunks),
        )
        for place, (name, files, look) in enumerate(kinds):
            finding = Finding(f"damaged: {name}")
            with Timer(finding):
                for number in range(rounds // len(kinds) + (place < rounds % len(kinds))):
                    generator = random.Random(f"{name} {seed} {number}")
                    shutil.copytree(folder / "template", folder / "harmed")
                    file = generator.choice(sorted((folder / "harmed").glob(files)))
                    file.write_bytes(harmed(file.read_bytes(), generator))
                    finding.rounds += 1
                    try:
                        look(folder / "harmed", entries, finding)
                    except Exception as error:
                        finding.failures.append(f"seed {seed}, round {number}: {type(error).__name__}: {error}")
                    shutil.rmtree(folder / "harmed")
                    advance()
            findings.append(finding)
    return findings


def harmed(data: bytes, generator: random.Random) -> bytes:
    """The data with one thing wrong."""
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


def _store(folder: Path, seed: int) -> list[Entry]:
    """Responses with vectors and graphs, the last of them in the log only, and chunks."""
    folder.mkdir()
    store, embedder = SqliteStore(folder / "open.db"), HashEmbedder()
    entries = [
        make_entry(f"question {seed} {number}", id=f"{number:032x}", namespace="n0", response=b'"%d"' % number * 60)
        for number in range(_ENTRIES)
    ]
    near = SmallGraphs(store)
    for part in (entries[:100], entries[100:]):
        puts = [NewEntry(entry, embedder.embed([entry.prompt])[0], embedder.name) for entry in part]
        near.apply(puts, store.put_many(puts))
        near.settle()
        if part[0] is entries[0]:
            store.database._writer.execute("pragma wal_checkpoint(truncate)")
    near.close()
    # As a process leaves them that is killed: the log has not been put into the database.
    for file in folder.glob("open.db*"):
        copy = shutil.copytree if file.is_dir() else shutil.copy
        copy(file, folder / file.name.replace("open", "r"))  # type: ignore[operator]
    store.close()
    for file in [*folder.glob("open.db*"), folder / "r.db-shm"]:
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    chunks = DiskStore(folder / "chunks", 1 << 30)
    for number in range(_CHUNKS):
        name = name_of(number)
        buffer = bytearray(header_bytes(name)) + bytes([number]) * _PAYLOAD
        write_header(memoryview(buffer), name)
        chunks.put(name.key, buffer)
    return entries


def _look_at_database(folder: Path, entries: Sequence[Entry], finding: Finding) -> None:
    try:
        store = SqliteStore(folder / "r.db", clock=lambda: 2000.0)
    except CacheStoreError:
        finding.counts["refused to open"] += 1
        return
    served = 0
    for entry in entries:
        try:
            found = store.find(entry.key)
            again = store.get(entry.id)
        except CacheStoreError:
            continue
        served += found is not None
        for each in (found, again):
            assert each is None or _same(each, entry), f"{each} is served for {entry}"
    store.close()
    finding.counts["all served"] += served == len(entries)
    finding.counts["some served"] += 0 < served < len(entries)
    finding.counts["none served"] += served == 0


def _same(one: Entry, other: Entry) -> bool:
    return (one.key, one.namespace, one.tenant, one.prompt, one.response) == (
        (other.key, other.namespace, other.tenant, other.prompt, other.response)
    )


def _look_at_graphs(folder: Path, entries: Sequence[Entry], finding: Finding) -> None:
    store, embedder = SqliteStore(folder / "r.db"), HashEmbedder()
    near = SmallGraphs(store)
    kept = near._graphs.load("n0") is not None
    finding.counts["used" if kept else "made again"] += 1
    near.load()
    near.settle()
    for entry in entries[::7]:
        (head, cosine), *_ = near.search("n0", embedder.embed([entry.prompt])[0], 3)
        assert head.id == entry.id, f"{head.id} is found for {entry.id}"
        assert cosine > 0.999
    near.close()
    store.close()


def _look_at_chunks(folder: Path, entries: Sequence[Entry], finding: Finding) -> None:
    store = DiskStore(folder / "chunks", 1 << 30)
    for number in range(_CHUNKS):
        data = store.get(name_of(number).key)
        payload = None if data is None else read_payload(data, name_of(number))
        assert payload is None or payload == bytes([number]) * _PAYLOAD, f"chunk {number} is torn"
        finding.counts["whole" if payload is not None else "skipped"] += 1


HARNESS = Harness("damage", 3000, run)

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(HARNESS)
