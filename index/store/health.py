"""Whether a store works. Logs its first failure and its recovery, not every failed request."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from kvproxy.index.errors import CacheStoreError

Operation = Literal["read", "write"]
_LOG_INTERVAL = 60.0  # Seconds. With one damaged page, failures and successes alternate.
_log = logging.getLogger("kvproxy")


class StoreHealth:
    """The current failures of a store.

    Args:
        name: of the store, without secrets.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures: dict[Operation, str] = {}
        self._next_log: dict[Operation, float] = {}
        self._logged: set[Operation] = set()

    @property
    def failure(self) -> str | None:
        """Why the last write or the last read failed; None if both worked."""
        return next(iter(self._failures.values()), None)

    @contextmanager
    def watch(self, operation: Operation) -> Iterator[None]:
        """Record whether the block raises a CacheStoreError, and raise it again."""
        try:
            yield
        except CacheStoreError as error:
            if operation not in self._failures:
                self._log_failure(operation, error)
            self._failures[operation] = str(error)
            raise
        if self._failures.pop(operation, None) is not None and operation in self._logged:
            self._logged.discard(operation)
            _log.warning("the store %s can be %s again", self._name, "written" if operation == "write" else "read")

    def _log_failure(self, operation: Operation, error: CacheStoreError) -> None:
        now = time.monotonic()
        if now >= self._next_log.get(operation, 0.0):
            self._next_log[operation] = now + _LOG_INTERVAL
            self._logged.add(operation)
            effect = "no response is stored" if operation == "write" else "no stored response is found"
            _log.error("%s; until it works again, %s", error, effect)
