"""The stored responses behind one interface: a running proxy where one answers, else the file itself."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from commands.client import ProxyClient
from commands.options import DEFAULT_URL
from kvproxy.errors import InvalidRequest, KvproxyError, NotFound, ProxyUnreachable

if TYPE_CHECKING:
    from index.observations import SqliteObservations
    from index.store import ResponseStore


class CacheAccess(Protocol):
    """What the cache commands do."""

    def ls(
        self, *, limit: int, namespace: str | None, model: str | None, search: str | None
    ) -> list[dict[str, Any]]: ...

    def show(self, id: str) -> dict[str, Any]: ...

    def remove(self, id: str) -> int: ...

    def remove_many(self, *, namespace: str | None, model: str | None, older_than: float | None) -> int: ...

    def feedback(self, id: str, *, right: bool, question: str | None) -> dict[str, Any]: ...

    def stats(self) -> dict[str, Any]: ...

    def export(self) -> Iterable[str]: ...

    def import_(self, lines: bytes) -> dict[str, int]: ...


@contextlib.contextmanager
def open_cache(url: str, token: str | None, store: Path | None, data: Path | None) -> Iterator[CacheAccess]:
    """The cache to work on: the file where --store or --data names one, else the proxy at the URL, else the default file.

    Raises:
        ProxyUnreachable: a URL was given on purpose, and nothing answers there.
    """
    if store is None and data is None:
        client = ProxyClient(url, token)
        if client.reachable():
            yield RemoteCache(client)
            return
        if url != DEFAULT_URL:
            raise ProxyUnreachable(f"no proxy answers at {url}: start one, or leave --url out to read the file")
    from index.errors import CacheStoreError
    from index.store import ResponseStore
    from kvproxy.settings import load_settings

    path = load_settings(store=store, data=data).store_path
    if not path.is_file():
        raise NotFound(f"no proxy answers at {url}, and there is no store {path}: start a proxy, or give --store")
    try:
        opened = ResponseStore(path)
    except CacheStoreError as error:
        raise KvproxyError(str(error)) from None
    try:
        yield FileCache(opened)
    finally:
        opened.close()


class RemoteCache:
    """The cache of a running proxy."""

    def __init__(self, client: ProxyClient) -> None:
        self._client = client

    def ls(self, *, limit: int, namespace: str | None, model: str | None, search: str | None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._client.get(
            "/admin/cache", limit=limit, namespace=namespace, model=model, search=search
        )
        return found

    def show(self, id: str) -> dict[str, Any]:
        entry: dict[str, Any] = self._client.get(f"/admin/cache/{id}")
        return entry

    def remove(self, id: str) -> int:
        return int(self._client.delete(f"/admin/cache/{id}")["removed"])

    def remove_many(self, *, namespace: str | None, model: str | None, older_than: float | None) -> int:
        everything = "true" if namespace is None and model is None and older_than is None else None
        done = self._client.delete(
            "/admin/cache", all=everything, namespace=namespace, model=model, older_than=older_than
        )
        return int(done["removed"])

    def feedback(self, id: str, *, right: bool, question: str | None) -> dict[str, Any]:
        body = {"right": right} | ({"question": question} if question is not None else {})
        done: dict[str, Any] = self._client.post(f"/admin/cache/{id}/feedback", body)
        return done

    def stats(self) -> dict[str, Any]:
        figures: dict[str, Any] = self._client.get("/admin/cache/stats")
        return figures

    def export(self) -> Iterable[str]:
        return self._client.text("/admin/cache/export").splitlines()

    def import_(self, lines: bytes) -> dict[str, int]:
        done: dict[str, int] = self._client.post("/admin/cache/import", lines)
        return done


class FileCache:
    """The cache of a stopped proxy."""

    def __init__(self, store: "ResponseStore") -> None:
        self._store = store

    def ls(self, *, limit: int, namespace: str | None, model: str | None, search: str | None) -> list[dict[str, Any]]:
        entries = self._store.ls(limit=limit or None, namespace=namespace, model=model, search=search)
        return [entry.summary() for entry in entries]

    def show(self, id: str) -> dict[str, Any]:
        entry = self._store.get(self._one(id))
        assert entry is not None
        return entry.document()

    def _one(self, prefix: str) -> str:
        ids = self._store.resolve(prefix)
        if not ids:
            raise NotFound(f"no stored response {prefix!r}: cache ls lists them")
        if len(ids) > 1:
            raise InvalidRequest(f"{len(ids)} entries begin with {prefix!r}: give more of the id")
        return ids[0]

    def remove(self, id: str) -> int:
        return self._store.delete([self._one(id)])

    def remove_many(self, *, namespace: str | None, model: str | None, older_than: float | None) -> int:
        entries = self._store.ls(namespace=namespace, model=model, older_than=older_than)
        return self._store.delete([entry.id for entry in entries])

    def feedback(self, id: str, *, right: bool, question: str | None) -> dict[str, Any]:
        if question is not None:
            raise InvalidRequest("a question needs a running proxy, which scores it: leave --question out")
        from index.observations import Observation

        entry = self._one(id)
        with self._observations() as observations:
            observations.add([Observation.verdict(entry, right)])
        return {"id": entry, "right": right}

    @contextlib.contextmanager
    def _observations(self) -> Iterator["SqliteObservations"]:
        from index.observations import SqliteObservations

        observations = SqliteObservations(self._store.path)
        try:
            yield observations
        finally:
            observations.close()

    def stats(self) -> dict[str, Any]:
        with self._observations() as observations:
            return self._store.stats() | {"semantic": {"learned": observations.summary()}}

    def export(self) -> Iterable[str]:
        return (json.dumps(document, ensure_ascii=False) for document in self._store.export())

    def import_(self, lines: bytes) -> dict[str, int]:
        from index.entry import Entry

        entries = []
        for number, line in enumerate(lines.splitlines(), 1):
            if line.strip():
                try:
                    entries.append(Entry.from_document(json.loads(line)))
                except (ValueError, KeyError, TypeError) as error:
                    raise InvalidRequest(
                        f"line {number} is no exported response ({error!r}): nothing was imported"
                    ) from None
        fresh = [entry for entry in entries if not self._store.has_key(entry.key)]
        for entry in fresh:
            self._store.put(entry)
        return {"imported": len(fresh), "skipped": len(entries) - len(fresh)}
