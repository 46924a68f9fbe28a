"""The stored responses behind one interface: a running proxy where one answers, else the file itself."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.options import DEFAULT_URL
from kvproxy.errors import InvalidRequest, KvproxyError, NotFound, ProxyUnreachable

if TYPE_CHECKING:
    from kvproxy.index.observations import Observations
    from kvproxy.index.store import Store

Where = dict[str, Any]
"""Fields of `index.store.Filter`; None where one does not matter."""


class CacheAccess(Protocol):
    """What the cache commands do."""

    def ls(self, where: Where, *, limit: int) -> list[dict[str, Any]]: ...

    def show(self, id: str) -> dict[str, Any]: ...

    def remove(self, id: str) -> int: ...

    def remove_many(self, where: Where) -> int: ...

    def feedback(self, id: str, *, right: bool, question: str | None) -> dict[str, Any]: ...

    def stats(self) -> dict[str, Any]: ...

    def export(self) -> Iterable[str]: ...

    def import_(self, lines: bytes) -> dict[str, int]: ...


@contextlib.contextmanager
def open_cache(url: str, token: str | None, store: str | None, data: Path | None) -> Iterator[CacheAccess]:
    """The cache to work on: the store where --store or --data names one, else the proxy at the URL, else the default file.

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
    from kvproxy.index.errors import CacheStoreError
    from kvproxy.index.store import open_store
    from kvproxy.index.store.opening import is_url
    from kvproxy.settings import load_settings

    settings = load_settings(store=store, data=data)
    if not is_url(settings.store_where) and not settings.store_path.is_file():
        raise NotFound(
            f"no proxy answers at {url}, and there is no store {settings.store_path}: start a proxy, or give --store"
        )
    try:
        opened = open_store(settings.store_where)
        try:
            yield StoreCache(opened, settings.store_where)
        finally:
            opened.close()
    except CacheStoreError as error:
        raise KvproxyError(str(error)) from None


class RemoteCache:
    """The cache of a running proxy."""

    def __init__(self, client: ProxyClient) -> None:
        self._client = client

    def ls(self, where: Where, *, limit: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._client.get("/admin/cache", limit=limit, **where)
        return found

    def show(self, id: str) -> dict[str, Any]:
        entry: dict[str, Any] = self._client.get(f"/admin/cache/{id}")
        return entry

    def remove(self, id: str) -> int:
        return int(self._client.delete(f"/admin/cache/{id}")["removed"])

    def remove_many(self, where: Where) -> int:
        everything = "true" if all(value is None for value in where.values()) else None
        return int(self._client.delete("/admin/cache", all=everything, **where)["removed"])

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


class StoreCache:
    """The cache without a proxy: the file of a stopped one, or a server's."""

    def __init__(self, store: "Store", where: str) -> None:
        self._store = store
        self._where = where

    def ls(self, where: Where, *, limit: int) -> list[dict[str, Any]]:
        from kvproxy.index.store import Filter

        return [entry.summary() for entry in self._store.ls(Filter(**where), limit=limit or None)]

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
        return len(self._store.delete([self._one(id)]))

    def remove_many(self, where: Where) -> int:
        from kvproxy.index.store import Filter

        return len(self._store.delete(self._store.ids(Filter(**where))))

    def feedback(self, id: str, *, right: bool, question: str | None) -> dict[str, Any]:
        if question is not None:
            raise InvalidRequest("a question needs a running proxy, which scores it: leave --question out")
        from kvproxy.index.observations import Observation

        entry = self._one(id)
        with self._observations() as observations:
            observations.add([Observation.verdict(entry, right)])
        return {"id": entry, "right": right}

    @contextlib.contextmanager
    def _observations(self) -> Iterator["Observations"]:
        from kvproxy.index.store.opening import open_observations

        observations = open_observations(self._where)
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
        from kvproxy.index.errors import ImportFailed
        from kvproxy.index.transfer import import_into, read_lines

        try:
            entries = read_lines(lines)
        except ImportFailed as error:
            raise InvalidRequest(str(error)) from None
        imported = import_into(self._store, entries)
        return {"imported": imported, "skipped": len(entries) - imported}
