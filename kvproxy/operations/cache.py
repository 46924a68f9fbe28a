import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from kvproxy.errors import NotFound
from kvproxy.operations.cache_parameters import EntryQuery
from kvproxy.operations.client import Document, ProxyClient, Rows, client_of_running_proxy, quote_path_segment

if TYPE_CHECKING:
    from kvproxy.index.store import UsageKey
    from kvproxy.operations.direct_cache import DirectCache

CacheClient: TypeAlias = "RemoteCache | DirectCache"


class RemoteCache:
    """The stored responses (entries) of a running proxy. An id may be abbreviated to a unique prefix."""

    def __init__(self, client: ProxyClient) -> None:
        self._client = client

    def entries(self, where: EntryQuery, *, limit: int) -> tuple[Rows, int]:
        """Return matching entries, newest first, and the number of all matching entries. A limit of 0 returns all."""
        return self._client.rows("/admin/cache", limit=limit, **where.filters)

    def eviction_queue(self, limit: int) -> Rows:
        return cast("Rows", self._client.get("/admin/cache/queue", limit=limit))

    def usage(self, by: "UsageKey") -> Rows:
        """Return `name`, `entries`, `bytes`, and `hits` of each group, the largest group first."""
        return cast("Rows", self._client.get("/admin/cache/usage", by=by))

    def entry(self, id: str) -> Document:
        document = self._client.get(f"/admin/cache/{quote_path_segment(id)}")
        if "request" not in document or not document["id"].startswith(id):
            # The id is another route, such as stats or export.
            raise NotFound(f"no stored response {id!r}: list them with kvproxy cache ls")
        return cast("Document", document)

    def remove(self, id: str, *, soft: bool = False) -> int:
        """Remove an entry, or expire it if `soft`; return 0 if nothing changed."""
        return self._delete(f"/admin/cache/{quote_path_segment(id)}", soft, {})

    def remove_many(self, where: EntryQuery, *, soft: bool = False) -> int:
        """Remove all matching entries, or expire them if `soft`. Return the number of changed entries."""
        return self._delete("/admin/cache", soft, where.filters or {"all": "true"})

    def _delete(self, path: str, soft: bool, where: Mapping[str, Any]) -> int:
        reply = self._client.delete(path, **where, soft="true" if soft else None)
        return int(reply["expired" if soft else "removed"])

    def feedback(self, id: str, *, right: bool, question: str | None) -> Document:
        """Record a person's verdict on a response for a similar `question`; None stands for all similar questions."""
        body = {"right": right} | ({"question": question} if question is not None else {})
        return cast("Document", self._client.post(f"/admin/cache/{quote_path_segment(id)}/feedback", body))

    def set_pinned(self, id: str, *, pinned: bool) -> Document:
        path = f"/admin/cache/{quote_path_segment(id)}/pin"
        return cast("Document", self._client.post(path) if pinned else self._client.delete(path))

    def stats(self) -> Document:
        return cast("Document", self._client.get("/admin/cache/stats"))

    def export(self) -> Iterator[bytes]:
        """Stream an export (JSON lines) in chunks, which may end within a line."""
        return self._client.stream("/admin/cache/export")

    def import_(self, lines: bytes) -> dict[str, int]:
        """Import an export. Return the number of entries by `imported` and `skipped`."""
        return cast("dict[str, int]", self._client.post("/admin/cache/import", lines))


@contextlib.contextmanager
def open_cache(
    url: str, token: str | None, store: str | None, data: Path | None, *, create: bool = False
) -> Iterator[CacheClient]:
    """Open the stored responses of `store`, or of the data folder `data`. Raises ProxyUnreachable or NotFound.

    If both are None, open the responses of the proxy at the URL. If the URL is `configured_url` and no proxy answers, open
    the configured store. `create` creates a missing store of `store` or `data`.
    """
    is_named = store is not None or data is not None
    if not is_named and (client := client_of_running_proxy(url, token)) is not None:
        yield RemoteCache(client)
        return
    from kvproxy.installation.checks.configured_store import open_configured_store, store_exists
    from kvproxy.operations.direct_cache import DirectCache
    from kvproxy.privacy.pattern_redaction import load_redactor
    from kvproxy.settings import load_settings

    settings = load_settings(store=store, data=data)
    if not store_exists(settings) and not (create and is_named):
        missing = f"there is no store {settings.store_path}"
        if is_named:
            raise NotFound(f"{missing}: check the path")
        raise NotFound(f"no proxy answers at {url}, and {missing}: start a proxy, or give --store")
    with open_configured_store(settings) as opened:
        yield DirectCache(opened, load_redactor(settings.redaction))
