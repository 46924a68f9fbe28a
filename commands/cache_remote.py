"""The stored responses of a running proxy."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kvproxy.commands.cache_access import Listing, Where
from kvproxy.commands.client import ProxyClient, part
from kvproxy.errors import NotFound


class RemoteCache:
    """A `CacheAccess` by way of the admin routes."""

    def __init__(self, client: ProxyClient) -> None:
        self._client = client

    def ls(self, where: Where, *, limit: int) -> Listing:
        return Listing(*self._client.rows("/admin/cache", limit=limit, **asdict(where)))

    def queue(self, limit: int) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._client.get("/admin/cache/queue", limit=limit)
        return entries

    def usage(self, by: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._client.get("/admin/cache/usage", by=by)
        return rows

    def show(self, id: str) -> dict[str, Any]:
        entry: dict[str, Any] = self._client.get(f"/admin/cache/{part(id)}")
        if "request" not in entry:
            # The word is another route, such as stats.
            raise NotFound(f"no stored response {id!r}: cache ls lists them")
        return entry

    def remove(self, id: str, *, soft: bool = False) -> int:
        return int(self._client.delete(f"/admin/cache/{part(id)}", soft="true" if soft else None)["removed"])

    def remove_many(self, where: Where, *, soft: bool = False) -> int:
        options = {"all": "true" if where == Where() else None, "soft": "true" if soft else None}
        return int(self._client.delete("/admin/cache", **options, **asdict(where))["removed"])

    def purges(self, limit: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._client.get("/admin/cache/purges", limit=limit)
        return rows

    def feedback(self, id: str, *, right: bool, question: str | None) -> dict[str, Any]:
        body = {"right": right} | ({"question": question} if question is not None else {})
        done: dict[str, Any] = self._client.post(f"/admin/cache/{part(id)}/feedback", body)
        return done

    def pin(self, id: str, *, pinned: bool) -> dict[str, Any]:
        path = f"/admin/cache/{part(id)}/pin"
        done: dict[str, Any] = self._client.post(path) if pinned else self._client.delete(path)
        return done

    def stats(self) -> dict[str, Any]:
        figures: dict[str, Any] = self._client.get("/admin/cache/stats")
        return figures

    def export(self) -> Iterator[bytes]:
        return self._client.parts("/admin/cache/export")

    def import_(self, lines: bytes) -> dict[str, int]:
        done: dict[str, int] = self._client.post("/admin/cache/import", lines)
        return done
