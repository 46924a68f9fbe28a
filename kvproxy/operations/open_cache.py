"""Opens the stored responses of a running proxy, or those of a store in the files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvproxy.errors import NotFound
from kvproxy.operations.client import ConfiguredUrl, client_of_store

if TYPE_CHECKING:
    from kvproxy.index.entry_redaction import Redactor
    from kvproxy.operations.cache import CacheAccess
    from kvproxy.operations.operation import AsyncOperation, Parameters, Result
    from kvproxy.settings import Settings


class CacheClient(Protocol):
    """Performs the operations of `kvproxy.operations.cache`."""

    def perform(
        self,
        operation: "AsyncOperation[CacheAccess, Parameters, Result]",
        parameters: "Parameters",
        body: object = None,
        /,
    ) -> "Result": ...

    def export_responses(self) -> Iterator[bytes]:
        """Stream an export (JSON lines) in chunks, which may end within a line."""


@contextlib.contextmanager
def open_cache(
    url: str, token: str | None, store: str | None, data: Path | None, *, create: bool = False
) -> Iterator[CacheClient]:
    """Open the stored responses of `store`, or of the data folder `data`. Raises ProxyUnreachable or NotFound.

    A running proxy performs the operations if the user named its URL, or if it uses the data folder and the store of the
    settings. Settings that name neither accept any proxy at `configured_url`. `create` creates a missing store that is named.
    """
    from kvproxy.settings import load_settings

    settings = load_settings(store=store, data=data)
    reads_files = store is not None or (data is not None and not isinstance(url, ConfiguredUrl))
    if not reads_files and (client := client_of_store(url, token, settings)) is not None:
        yield client
        return
    from kvproxy.installation.checks.configured_store import open_configured_store, store_exists
    from kvproxy.operations.direct_cache import DirectCache

    is_named = bool(settings.model_fields_set & {"data", "store"})
    if not store_exists(settings) and not (create and is_named):
        missing = f"there is no store {settings.store_path}"
        if is_named:
            is_file_named = "store" in settings.model_fields_set
            fix = "check the path" if is_file_named else "kvproxy serve writes one; --data names its folder"
            raise NotFound(f"{missing}: {fix}")
        raise NotFound(f"no proxy answers at {url}, and {missing}: start a proxy, or give --store")
    with open_configured_store(settings) as opened:
        folder = settings.data if store is None else settings.store_path.parent
        yield DirectCache(opened, folder, lambda: _load_redactor(settings))


def _load_redactor(settings: "Settings") -> "Redactor | None":
    from kvproxy.privacy.pattern_redaction import load_redactor

    return load_redactor(settings.redaction)
