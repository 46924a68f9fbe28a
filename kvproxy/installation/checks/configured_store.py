"""Opens the configured store directly, without a proxy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvproxy.errors import KvproxyError
from kvproxy.index.store_location import is_url
from kvproxy.privacy.encryption import load_cipher
from kvproxy.settings import Settings

if TYPE_CHECKING:
    from kvproxy.index.store import Store


def store_exists(settings: Settings) -> bool:
    """Return whether the configured store exists; always True for a database server."""
    return is_url(settings.store_location) or settings.store_path.is_file()


def store_name(settings: Settings) -> str:
    """Return the file or the URL of the stored responses, without a password."""
    location = settings.store_location
    if not is_url(location):
        return os.path.realpath(location)
    from kvproxy.index.store.postgres.database import display_name

    return display_name(location)


@contextmanager
def open_configured_store(settings: Settings, *, accepts_constant: bool = True) -> "Iterator[Store]":
    """Open the configured store directly, not through a proxy. Raises KvproxyError if it is damaged or unreachable.

    `accepts_constant`: open a file on a read-only file system, too, for reads.
    """
    from kvproxy.index.errors import CacheStoreError
    from kvproxy.index.store import open_store

    try:
        store = open_store(
            settings.store_location, cipher=load_cipher(settings.encryption), accepts_constant=accepts_constant
        )
        store.database.health.is_logged = False
        try:
            yield store
        finally:
            store.close()
    except CacheStoreError as error:
        raise KvproxyError(str(error)) from None
