"""Graphs in files beside the database, so that a start does not rebuild them.

A graph has a file of FAISS, and a file of numbers and ids with the checksum of the first, which is renamed into place last.
The database is the source of truth: files that are damaged or belong to another database or embedder are removed.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.private_files import make_private_folder, restrict
from kvproxy.index.search.faiss_segment import EF_SEARCH, Kind, Segment
from kvproxy.index.store.sqlite.store import SqliteStore

_MAX_UNUSED = 7 * 86_400.0  # Seconds. Another proxy with another embedder may use the same store.
_VERSION = 3


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
        import faiss

        if graph.on_gpu:
            return
        make_private_folder(self.folder)
        name = self._name(namespace)
        index = self.folder / f"{name}.{uuid.uuid4().hex[:8]}.faiss"
        try:
            faiss.write_index(graph.index, str(index))
            header = self._source(namespace) | {"index": index.name, "checksum": _checksum(index)}
            partial = index.with_suffix(".partial.npz")
            np.savez(partial, header=json.dumps(header), numbers=graph.numbers, ids=self._ids(namespace, graph.numbers))
            partial.replace(self.folder / f"{name}.npz")
        except Exception:
            # Partial files of repeated attempts would fill the disk.
            self._unlink(f"{index.stem}.*")
            raise
        self._unlink(f"{name}.*", index.name, f"{name}.npz")

    def _unlink(self, pattern: str, *kept: str) -> None:
        for file in self.folder.glob(pattern):
            if file.name not in kept:
                file.unlink(missing_ok=True)

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
        except CacheStoreError:
            raise
        except Exception:
            # NumPy and FAISS raise errors of many types for damaged and missing files.
            found = None
        if found is None:
            self.forget(namespace)
        return found

    def _read(self, namespace: str) -> tuple[Segment, np.ndarray] | None:
        import faiss

        members = self.folder / f"{self._name(namespace)}.npz"
        # NumPy leaks the file if the content is damaged.
        with members.open("rb") as file, np.load(file) as saved:
            header, numbers, ids = json.loads(str(saved["header"])), saved["numbers"], saved["ids"]
        index = self.folder / header["index"]
        if not self._source(namespace).items() <= header.items() or _checksum(index) != header["checksum"]:
            return None
        dead = self._dead(namespace, numbers, ids)
        if dead is None:
            return None
        graph: Any = faiss.read_index(str(index))
        if graph.ntotal != len(numbers) or graph.d != self._dim:
            return None
        graph.hnsw.efSearch = EF_SEARCH
        os.utime(members)  # The time of last use, for `sweep`.
        return Segment(self._dim, self._kind, graph=True, index=graph, numbers=numbers), dead

    def _dead(self, namespace: str, numbers: np.ndarray, ids: np.ndarray) -> np.ndarray | None:
        """Return the numbers that the store deleted; None if the graph does not match the store."""
        stored, stored_ids = self._store.vector_ids(namespace, self._embedder)
        if not len(stored) or not len(numbers):
            return None
        places = np.minimum(np.searchsorted(stored, numbers), len(stored) - 1)
        there = stored[places] == numbers
        if (stored_ids[places][there] != ids[there]).any() or there.sum() != (stored <= numbers[-1]).sum():
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
                    self._unlink(f"{name}.*")

    def forget(self, namespace: str) -> None:
        with contextlib.suppress(OSError):
            self._unlink(f"{self._name(namespace)}.*")


def _checksum(file: Path) -> str:
    import xxhash

    with file.open("rb") as content:
        return hashlib.file_digest(content, xxhash.xxh3_128).hexdigest()
