"""Graphs in files beside the database, so that a start does not rebuild them.

A graph has a file of FAISS, a file of numbers and ids, and a header with the checksums of both, which is renamed into place last.
The database is the source of truth: files that are damaged or belong to another database or embedder are removed.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.private_files import make_private_folder, restrict
from kvproxy.index.search.faiss_segment import EF_SEARCH, Kind, Segment
from kvproxy.index.store.sqlite.store import SqliteStore

_MAX_UNUSED = 7 * 86_400.0  # Seconds. Another proxy with another embedder may use the same store.
_VERSION = 2


class SavedGraphs:
    """The graphs of one database, in the folder `NAME-index` beside it.

    Args:
        store: the database.
        embedder: name of the embedder of the vectors.
        dim, kind: see `Segment`.
    """

    def __init__(self, store: SqliteStore, embedder: str, dim: int, kind: Kind) -> None:
        self._store = store
        self._embedder = embedder
        self._dim = dim
        self._kind: Kind = kind
        self.folder = store.path.with_name(store.path.name + "-index")
        if self.folder.is_dir():
            restrict(self.folder)

    def _name(self, namespace: str) -> str:
        return hashlib.sha256(f"{self._embedder}\n{namespace}".encode()).hexdigest()[:32]

    def _source(self, namespace: str) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "store": self._store.identity,
            "embedder": self._embedder,
            "namespace": namespace,
            "dim": self._dim,
            "kind": self._kind,
        }

    def save(self, namespace: str, graph: Segment) -> None:
        """Save a graph, which must not change meanwhile. A failure leaves only the old files."""
        if graph.on_gpu:
            return
        make_private_folder(self.folder)
        name, generation = self._name(namespace), uuid.uuid4().hex[:8]
        try:
            self._write(namespace, graph, name, generation)
        except Exception:
            # Partial files of repeated attempts would fill the disk.
            self._unlink(name, lambda file: f".{generation}." in file.name)
            raise
        self._unlink(name, lambda file: file.suffix != ".json" and f".{generation}." not in file.name)

    def _unlink(self, name: str, which: Callable[[Path], bool]) -> None:
        for file in self.folder.glob(f"{name}.*"):
            if which(file):
                file.unlink(missing_ok=True)

    def _write(self, namespace: str, graph: Segment, name: str, generation: str) -> None:
        import faiss

        index, members = (self.folder / f"{name}.{generation}.{kind}" for kind in ("faiss", "npz"))
        faiss.write_index(graph.index, str(index))
        np.savez(members, numbers=graph.numbers, ids=self._ids(namespace, graph.numbers))
        header = self._source(namespace) | {
            "generation": generation,
            "count": len(graph),
            "index": _checksum(index),
            "members": _checksum(members),
        }
        partial = self.folder / f"{name}.{generation}.partial"
        partial.write_text(json.dumps(header))
        partial.replace(self.folder / f"{name}.json")

    def _ids(self, namespace: str, numbers: np.ndarray) -> np.ndarray:
        stored, ids = self._store.vector_ids(namespace, self._embedder)
        if not len(stored):
            return np.zeros(len(numbers), "S1")
        places = np.minimum(np.searchsorted(stored, numbers), len(stored) - 1)
        return np.where(stored[places] == numbers, ids[places], b"")

    def load(self, namespace: str) -> tuple[Segment, np.ndarray] | None:
        """Load a graph and its numbers that the store deleted; None if no valid file exists."""
        try:
            found = self._read(namespace)
        except (OSError, ValueError, KeyError, RuntimeError, EOFError):
            found = None
        if found is None:
            self.forget(namespace)
        return found

    def _read(self, namespace: str) -> tuple[Segment, np.ndarray] | None:
        import faiss

        name = self._name(namespace)
        header = json.loads((self.folder / f"{name}.json").read_text())
        if {key: header[key] for key in self._source(namespace)} != self._source(namespace):
            return None
        index, members = (self.folder / f"{name}.{header['generation']}.{kind}" for kind in ("faiss", "npz"))
        if _checksum(members) != header["members"] or _checksum(index) != header["index"]:
            return None
        with np.load(members) as kept:
            numbers, ids = kept["numbers"], kept["ids"]
        dead = self._dead(namespace, numbers, ids)
        if dead is None:
            return None
        graph: Any = faiss.read_index(str(index))
        if graph.ntotal != len(numbers) or graph.d != self._dim:
            return None
        graph.hnsw.efSearch = EF_SEARCH
        os.utime(self.folder / f"{name}.json")  # The time of last use, for `sweep`.
        return Segment(self._dim, self._kind, graph=True, index=graph, numbers=numbers), dead

    def _dead(self, namespace: str, numbers: np.ndarray, ids: np.ndarray) -> np.ndarray | None:
        """Return the numbers that the store deleted; None if the graph does not match the store."""
        stored, stored_ids = self._store.vector_ids(namespace, self._embedder)
        if not len(stored) or not len(numbers):
            return None
        places = np.minimum(np.searchsorted(stored, numbers), len(stored) - 1)
        there = stored[places] == numbers
        if (stored_ids[places][there] != ids[there]).any():
            return None
        if there.sum() != (stored <= numbers[-1]).sum():
            return None
        dead: np.ndarray = numbers[~there]
        return dead

    def sweep(self, namespaces: Iterable[str]) -> None:
        """Remove graphs of other namespaces that were not used for a week."""
        kept = {self._name(namespace) for namespace in namespaces}
        files: dict[str, list[Path]] = {}
        for file in self.folder.glob("*.*"):
            files.setdefault(file.name.split(".")[0], []).append(file)
        for name in files.keys() - kept:
            with contextlib.suppress(OSError):
                if max(file.stat().st_mtime for file in files[name]) < time.time() - _MAX_UNUSED:
                    self._unlink(name, lambda file: True)

    def forget(self, namespace: str) -> None:
        """Remove the files of a namespace."""
        with contextlib.suppress(OSError):
            self._unlink(self._name(namespace), lambda file: True)


def _checksum(file: Path) -> str:
    import xxhash

    digest = xxhash.xxh3_128()
    with file.open("rb") as content:
        while part := content.read(1 << 22):
            digest.update(part)
    return str(digest.hexdigest())
