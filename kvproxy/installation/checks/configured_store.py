"""Opens the configured store directly, without a proxy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvproxy.errors import KvproxyError
from kvproxy.privacy.encryption import load_cipher
from kvproxy.settings import Settings

if TYPE_CHECKING:
    from kvproxy.index.store import Store


def store_exists(settings: Settings) -> bool:
    """Return whether the configured store exists; always True for a database server."""
    from kvproxy.index.store_location import is_url

    return is_url(settings.store_location) or settings.store_path.is_file()


@contextmanager
def open_configured_store(settings: Settings) -> "Iterator[Store]":
    """Open the configured store directly, not through a proxy. Raises KvproxyError if it is damaged or unreachable."""
    from kvproxy.index.errors import CacheStoreError
    from kvproxy.index.store import open_store

    try:
        store = open_store(settings.store_location, cipher=load_cipher(settings.encryption))
        try:
            yield store
        finally:
            store.close()
    except CacheStoreError as error:
        raise KvproxyError(str(error)) from None
