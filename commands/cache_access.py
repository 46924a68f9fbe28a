"""The stored responses behind one interface: of a running proxy where one answers, else the store itself."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.options import configured_url
from kvproxy.errors import NotFound, ProxyUnreachable

if TYPE_CHECKING:
    from kvproxy.index.store import UsageKey


@dataclass(frozen=True, slots=True)
class Where:
    """Which entries a command means, as in `index.store.Filter`; what is None does not matter."""

    namespace: str | None = None
    key: str | None = None
    model: str | None = None
    tag: str | None = None
    prompt: str | None = None
    search: str | None = None
    older_than: float | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries as listings show them, and how many fit in all."""

    entries: list[dict[str, Any]]
    total: int


class CacheAccess(Protocol):
    """What commands do with stored responses. Every method may raise a KvproxyError whose message names the fix."""

    def ls(self, where: Where, *, limit: int) -> Listing:
        """Entries, newest first; a limit of 0 is none."""

    def queue(self, limit: int) -> list[dict[str, Any]]:
        """The entries that go next if the store is full, as listings show them."""

    def usage(self, by: "UsageKey") -> list[dict[str, Any]]:
        """Whose the entries are: name, entries, bytes and hits, those with the most bytes first."""

    def show(self, id: str) -> dict[str, Any]:
        """The one entry whose id begins with a text, with its request and response."""

    def remove(self, id: str, *, soft: bool = False) -> int:
        """Remove that entry; how many went.

        Args:
            soft: let its time end now instead, so that only its stale times are left.
        """

    def remove_many(self, where: Where, *, soft: bool = False) -> int:
        """Remove all entries that fit, in the same way; how many went."""

    def purges(self, limit: int) -> list[dict[str, Any]]:
        """Removals by the operator, the last one first: time, who, what, soft, entries."""

    def feedback(self, id: str, *, right: bool, question: str | None) -> dict[str, Any]:
        """Keep a person's verdict about an entry."""

    def pin(self, id: str, *, pinned: bool) -> dict[str, Any]:
        """Have an entry make room after all others, or like others again."""

    def stats(self) -> dict[str, Any]:
        """Figures."""

    def export(self) -> Iterator[bytes]:
        """Every entry as a line of JSON; in parts of any size."""

    def import_(self, lines: bytes) -> dict[str, int]:
        """Take an export back; how many were imported and skipped."""


@contextlib.contextmanager
def open_cache(
    url: str, token: str | None, store: str | None, data: Path | None, *, create: bool = False
) -> Iterator[CacheAccess]:
    """The cache to work on: the store that --store or --data names, else the proxy at the URL, else the default store.

    Args:
        create: make the store that --store or --data names.

    Raises:
        ProxyUnreachable: a URL was given on purpose, and nothing answers there.
        NotFound: there is neither a proxy nor a store.
    """
    from kvproxy.commands.cache_remote import RemoteCache

    if store is None and data is None:
        client = ProxyClient(url, token)
        if client.reachable():
            yield RemoteCache(client)
            return
        if url != configured_url():
            raise ProxyUnreachable(f"no proxy answers at {url}: start one, or leave --url out to read the file")
    from kvproxy.checks.stored import opened_store, store_exists
    from kvproxy.commands.cache_file import FileCache
    from kvproxy.redaction import load_redactor
    from kvproxy.settings import load_settings

    settings = load_settings(store=store, data=data)
    named = store is not None or data is not None
    if not store_exists(settings) and not (create and named):
        if named:
            raise NotFound(f"there is no store {settings.store_path}: check the path")
        raise NotFound(
            f"no proxy answers at {url}, and there is no store {settings.store_path}: start a proxy, or give --store"
        )
    with opened_store(settings) as opened:
        clear = not (settings.encryption.enabled or settings.redaction.enabled)
        yield FileCache(opened, load_redactor(settings.redaction), clear=clear)
