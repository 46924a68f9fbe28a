"""Stored responses of a running proxy, through its admin routes."""

from collections.abc import Iterator
from typing import Any, cast

from kvproxy.errors import NotFound
from kvproxy.proxy_client.cache import EntryList, FilterValues
from kvproxy.proxy_client.client import ProxyClient, path_segment

Rows = list[dict[str, Any]]
Document = dict[str, Any]


class RemoteCache:
    """A `CacheClient` of a running proxy."""

    def __init__(self, client: ProxyClient) -> None:
        self._client = client

    def entries(self, where: FilterValues, *, limit: int) -> EntryList:
        return EntryList(*self._client.rows("/admin/cache", limit=limit, **where))

    def eviction_queue(self, limit: int) -> Rows:
        return cast("Rows", self._client.get("/admin/cache/queue", limit=limit))

    def usage(self, by: str) -> Rows:
        return cast("Rows", self._client.get("/admin/cache/usage", by=by))

    def entry(self, id: str) -> Document:
        document = self._client.get(f"/admin/cache/{path_segment(id)}")
        if "request" not in document:
            # The id is the name of another route, such as stats.
            raise NotFound(f"no stored response {id!r}: list them with kvproxy cache ls")
        return cast("Document", document)

    def remove(self, id: str, *, soft: bool = False) -> int:
        return int(self._client.delete(f"/admin/cache/{path_segment(id)}", soft="true" if soft else None)["removed"])

    def remove_many(self, where: FilterValues, *, soft: bool = False) -> int:
        options = {"all": None if where else "true", "soft": "true" if soft else None}
        return int(self._client.delete("/admin/cache", **options, **where)["removed"])

    def purges(self, limit: int) -> Rows:
        return cast("Rows", self._client.get("/admin/cache/purges", limit=limit))

    def feedback(self, id: str, *, right: bool, question: str | None) -> Document:
        body = {"right": right} | ({"question": question} if question is not None else {})
        return cast("Document", self._client.post(f"/admin/cache/{path_segment(id)}/feedback", body))

    def pin(self, id: str, *, pinned: bool) -> Document:
        path = f"/admin/cache/{path_segment(id)}/pin"
        return cast("Document", self._client.post(path) if pinned else self._client.delete(path))

    def stats(self) -> Document:
        return cast("Document", self._client.get("/admin/cache/stats"))

    def export(self) -> Iterator[bytes]:
        return self._client.chunks("/admin/cache/export")

    def import_(self, lines: bytes) -> dict[str, int]:
        return cast("dict[str, int]", self._client.post("/admin/cache/import", lines))
