"""Whether a store works: said when it begins to fail, and when it works again."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from kvproxy.index.errors import CacheStoreError

Kind = Literal["read", "write"]
_REST = 60.0  # Seconds between two lines of a kind. Where one page is damaged, failure and success take turns.
_log = logging.getLogger("kvproxy")


class StoreHealth:
    """What fails of a store. On a full disk every answer fails to be written: one line in the log says so, not thousands.

    Args:
        name: where the store is, without secrets.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures: dict[Kind, str] = {}
        self._next: dict[Kind, float] = {}
        self._told: set[Kind] = set()

    @property
    def failure(self) -> str | None:
        """Why the last write or the last read failed; None where both worked."""
        return next(iter(self._failures.values()), None)

    @contextmanager
    def watch(self, kind: Kind) -> Iterator[None]:
        """Notice how a read or a write ends; its error goes on to the caller."""
        try:
            yield
        except CacheStoreError as error:
            if kind not in self._failures:
                self._tell(kind, error)
            self._failures[kind] = str(error)
            raise
        if self._failures.pop(kind, None) is not None and kind in self._told:
            self._told.discard(kind)
            _log.warning("the store %s can be %s again", self._name, "written" if kind == "write" else "read")

    def _tell(self, kind: Kind, error: CacheStoreError) -> None:
        now = time.monotonic()
        if now >= self._next.get(kind, 0.0):
            self._next[kind] = now + _REST
            self._told.add(kind)
            _log.error("%s; until then %s", error, "no answer is stored" if kind == "write" else "no answer is found")
