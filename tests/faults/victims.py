"""Victims of the harnesses: each works in a process of its own, reports durable changes, and is checked after the kill."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np

from kvproxy.clients.client_keys import add_client, all_clients, remove_client
from kvproxy.exchange import Exchange
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.search.vector_search import FaissSearch
from kvproxy.index.store import Capacity, Store, open_observations, open_store
from kvproxy.index.store.observations import Observation
from kvproxy.journal.journal import open_stored_journal
from kvproxy.journal.reader import JournalReader
from kvproxy.operations.record_query import RecordQuery
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings
from kvproxy.tiers.chunk_format import ChunkName, payload_offset, read_payload, write_header
from kvproxy.tiers.local_stores import DiskStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import indexed_numbers, make_entry, stored_vectors
from tests.requests import api_request

Report = Callable[[str], None]
READY = "ready"
"""The report after which a kill may come."""


class Victim:
    """Works on files until it is killed.

    Attributes:
        name: for the table.
        lives: rounds of one folder, each with the files of the previous rounds.
        longest: maximum seconds from `READY` to the kill.
        limited_every: limit the size in the folders of one in this many seeds; 0 for no folder.
    """

    name: str
    lives: int
    longest: float
    limited_every = 0

    def prepare(self, folder: Path, seed: int) -> None:
        """Mark a folder whose size is limited."""
        if self.limited_every and seed % self.limited_every == 1:
            (folder / "limited").touch()

    def work(self, folder: Path, seed: int, report: Report) -> None:
        """Report `READY`, and then each change as soon as it is durable: `+x` added, `~x` before a removal, `-x` removed."""
        raise NotImplementedError

    def check(self, folder: Path, reports: Sequence[str]) -> None:
        """Raise AssertionError if a reported change is lost, or data is torn; `reports` are those of all rounds."""
        raise NotImplementedError


def by_sign(reports: Sequence[str]) -> dict[str, set[str]]:
    return {sign: {line[1:] for line in reports if line[0] == sign} for sign in "+~-="}


def is_limited(folder: Path) -> bool:
    return (folder / "limited").exists()


class Responses(Victim):
    """The store of responses: four threads put, remove, and expire entries, with a limit in every other folder."""

    name, lives, longest, limited_every = "store", 20, 0.12, 2
    _limit, _now = 200, 2000.0

    def work(self, folder: Path, seed: int, report: Report) -> None:
        capacity = Capacity(self._limit if is_limited(folder) else None)
        store = open_store(folder / "r.db", clock=lambda: self._now, capacity=capacity)
        report(READY)

        def put(worker: int) -> None:
            for number in count():
                entry = make_entry(f"question {seed} {worker} {number}", tags=("t",), response=b'"x"' * 700)
                store.put(entry, np.full(8, worker, np.float32), "e")
                report(f"+{entry.id}")
                if number % 7 == 3:
                    report(f"~{entry.id}")
                    store.delete([entry.id])
                    report(f"-{entry.id}")
                if number % 5 == 0:
                    store.put(make_entry(f"old {seed} {worker} {number}", expires=self._now - 1))
                    store.record_hit(entry.id)
                    store.flush()
                    store.remove_expired()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(put, range(4)))

    def check(self, folder: Path, reports: Sequence[str]) -> None:
        store, signs = open_store(folder / "r.db", clock=lambda: self._now), by_sign(reports)
        ids, entries = set(store.ids()), list(store.entries())
        assert store.database.count_intact_responses() == store.count() == len(ids)
        assert not signs["-"] & ids, "a removed response is back"
        if is_limited(folder):
            assert len(ids) <= self._limit
        else:
            lost = signs["+"] - signs["~"] - ids
            assert not lost, f"{len(lost)} acknowledged responses are lost"
        assert set(stored_vectors(store).values()) <= ids
        questions = [entry for entry in store.list_entries() if entry.prompt.startswith("question")]
        assert all(entry.response == b'"x"' * 700 for entry in questions)
        tagged = sum(entry.prompt.startswith("question") for entry in entries)
        assert store.stats().tags.get("t", 0) == tagged
        store.close()


class SmallGraphs(FaissSearch):
    """Graphs of 60 vectors or more."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, HashEmbedder.name, HashEmbedder().dim, min_indexed=20, flat_limit=60)


class Graphs(Victim):
    """A semantic cache whose namespaces are large enough for graphs."""

    name, lives, longest, limited_every = "index", 8, 0.4, 3
    _limit, _namespaces = 150, ("n0", "n1")

    def work(self, folder: Path, seed: int, report: Report) -> None:
        limited = is_limited(folder)
        store = open_store(folder / "r.db", capacity=Capacity(self._limit if limited else None))
        semantic = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.8))
        semantic._vector_search = SmallGraphs(store)
        semantic.rebuild()
        report(READY)

        async def insert(worker: int) -> None:
            for number in count():
                entry = make_entry(f"question {seed} {worker} {number}", namespace=self._namespaces[worker % 2])
                if not await semantic.insert(entry):
                    assert limited, "an entry was evicted without a limit"
                    report(f"-{entry.id}")  # Another entry of the same batch was worth more.
                    continue
                report(f"+{entry.id}")
                if number % 4 == 0:
                    report(f"~{entry.id}")
                    await asyncio.to_thread(store.delete, [entry.id])
                    report(f"-{entry.id}")

        async def insert_all() -> None:
            await asyncio.gather(*map(insert, range(4)))

        asyncio.run(insert_all())

    def check(self, folder: Path, reports: Sequence[str]) -> None:
        store, signs = open_store(folder / "r.db"), by_sign(reports)
        ids = set(store.ids())
        assert len(ids) <= self._limit if is_limited(folder) else signs["+"] - signs["~"] <= ids
        assert not signs["-"] & ids
        near, found = SmallGraphs(store), set()
        near.load()
        near.wait_for_rebuilds()
        for namespace in self._namespaces:
            stored = stored_vectors(store, namespace, HashEmbedder.name)
            found |= set(stored.values())
            if namespace in near.indexes:
                assert indexed_numbers(near.indexes[namespace]) == set(stored), "store and index differ"
            for entry in store.list_entries(limit=3):
                if entry.namespace == namespace:
                    best = near.search(namespace, HashEmbedder().embed([entry.prompt])[0], 3)
                    assert best[0][1] > 0.999, "an entry is not found by its own question"
        assert found == ids, "entries without vectors, or vectors without entries"
        near.close()
        store.close()


class Observations(Victim):
    """Observations, the snapshots of namespaces (`=NUMBER`), and the pruning of observations that a snapshot contains."""

    name, lives, longest = "observations", 20, 0.1

    def work(self, folder: Path, seed: int, report: Report) -> None:
        log = open_observations(folder / "r.db")
        report(READY)
        for number in count():
            name = f"{seed}-{number}"
            log.add([Observation.from_verdict(name, right=False, namespace="n")])
            report(f"+{name}")
            log.add([Observation(f"served {name}", True, "answer", True, 0.0, "n")])
            if number % 3 == 0:
                last = log.list_since("n", 0, 10**6)[-1].number
                log.save_snapshot("n", last, json.dumps({"upto": last}))
                report(f"={last}")
                log.prune(10)

    def check(self, folder: Path, reports: Sequence[str]) -> None:
        log, signs = open_observations(folder / "r.db"), by_sign(reports)
        assert signs["+"] <= log.rejected_entries(sorted(signs["+"])), "a verdict is lost"
        state = log.snapshot("n")
        upto = 0 if state is None else json.loads(state)["upto"]
        assert upto >= max(map(int, signs["="]), default=0), "a snapshot is lost"
        assert log.last_pruned_number("n") <= upto, "observations are lost that no snapshot contains"
        log.close()


class Creation(Victim):
    """The creation of a store."""

    name, lives, longest = "creation", 1, 0.03

    def work(self, folder: Path, seed: int, report: Report) -> None:
        report(READY)
        open_store(folder / "r.db").close()
        report("done")

    def check(self, folder: Path, reports: Sequence[str]) -> None:
        store, observations = open_store(folder / "r.db"), open_observations(folder / "r.db")
        store.put(make_entry("one"))
        assert store.database.count_intact_responses() == store.count() == 1
        assert observations.summary()["observed"] == 0
        observations.close()
        store.close()


class Journal(Victim):
    """The journal: records of requests, flushed in batches of seven."""

    name, lives, longest = "journal", 10, 0.12

    def work(self, folder: Path, seed: int, report: Report) -> None:
        journal = open_stored_journal(folder / "journal.db", JournalSettings())
        report(READY)
        for batch in count():
            names = [f"{seed}-{batch}-{number}" for number in range(7)]
            for name in names:
                request = api_request({"messages": [{"role": "user", "content": name}]})
                journal.add(Exchange("chat", name, request=request))
            journal.flush()
            assert journal.lost == 0
            for name in names:
                report(name)

    def check(self, folder: Path, reports: Sequence[str]) -> None:
        open_stored_journal(folder / "journal.db", JournalSettings()).close()
        with contextlib.closing(JournalReader(folder / "journal.db")) as reader:
            found = [record.request_id for record in reader.records(RecordQuery(limit=10**6))]
        assert set(reports) <= set(found), "a record is lost"
        assert len(set(found)) == len(found), "a record was written twice"


class Chunks(Victim):
    """The disk tier; every other folder is too small for its chunks."""

    name, lives, longest, limited_every = "disk tier", 4, 0.08, 2
    _limit = 3_000_000

    def _open(self, folder: Path) -> DiskStore:
        return DiskStore(folder / "chunks", self._limit if is_limited(folder) else 1 << 40)

    def work(self, folder: Path, seed: int, report: Report) -> None:
        store = self._open(folder)
        report(READY)
        for number in count(1000 * seed):
            put_chunk(store, number, 200_000)
            report(str(number))

    def check(self, folder: Path, reports: Sequence[str]) -> None:
        store, limited, found = self._open(folder), is_limited(folder), 0
        for number in map(int, reports):
            present = has_chunk(store, number, 200_000)
            assert present or limited, f"chunk {number} is lost"
            found += present
        on_disk = sum(path.stat().st_size for path in (folder / "chunks").rglob("*.chunk"))
        assert store.stats().bytes == on_disk
        assert not limited or on_disk <= self._limit
        # Each life may store one chunk without a report.
        assert found <= store.stats().chunks <= found + self.lives
        assert not list((folder / "chunks").glob("*.part")), "an unfinished chunk remains"


def _chunk_name(number: int) -> ChunkName:
    return ChunkName(b"f" * 32, number.to_bytes(32, "big"), [number % 1000, 1])


def put_chunk(store: DiskStore, number: int, size: int) -> None:
    """Store a chunk whose bytes are its number modulo 256."""
    name = _chunk_name(number)
    buffer = bytearray(payload_offset(name)) + bytes([number % 256]) * size
    write_header(memoryview(buffer), name)
    store.put(name.key, buffer)


def has_chunk(store: DiskStore, number: int, size: int, *, damaged: bool = False) -> bool:
    """Return whether a chunk is present; raise AssertionError if it is torn. A damaged chunk may be rejected."""
    name = _chunk_name(number)
    data = store.get(name.key)
    payload = None if data is None else read_payload(data, name)
    if data is None or (damaged and payload is None):
        return False
    assert payload == bytes([number % 256]) * size, f"chunk {number} is torn"
    return True


class Clients(Victim):
    """The file of clients, which `kvproxy keys` replaces as a whole."""

    name, lives, longest = "clients", 5, 0.05

    def work(self, folder: Path, seed: int, report: Report) -> None:
        settings = load_settings(data=folder)
        report(READY)
        for number in count():
            name = f"c{seed}-{number}"
            add_client(settings, name)
            report(f"+{name}")
            if number % 3:
                report(f"~{name}")
                remove_client(settings, name)
                report(f"-{name}")

    def check(self, folder: Path, reports: Sequence[str]) -> None:
        names, signs = {client.name for client in all_clients(load_settings(data=folder))}, by_sign(reports)
        assert signs["+"] - signs["~"] <= names, "a client is lost"
        assert not names & signs["-"], "a revoked key is valid"


VICTIMS: tuple[Victim, ...] = (Responses(), Graphs(), Observations(), Creation(), Journal(), Chunks(), Clients())


class Careless(Victim):
    """Reports lines before it writes them, so the harness must find a loss."""

    name, lives, longest = "careless", 1, 0.02

    def work(self, folder: Path, seed: int, report: Report) -> None:
        report(READY)
        with (folder / "lines").open("a") as out:
            for number in range(10**6):
                report(str(number))
                out.write(f"{number}\n")

    def check(self, folder: Path, reports: Sequence[str]) -> None:
        assert set(reports) <= set((folder / "lines").read_text().split())


class Short(Victim):
    """Exits by itself, before or after `READY`, which the harness must detect."""

    name, lives, longest = "short", 1, 5.0

    def __init__(self, code: int, *, begins: bool) -> None:
        self._code = code
        self._begins = begins

    def work(self, folder: Path, seed: int, report: Report) -> None:
        if self._begins:
            report(READY)
        os._exit(self._code)
