"""The keys of a file's entries in memory, so that a question that is new need not be asked of the file.

SQLite answers in some microseconds, but Python's lock is handed over for it, and under load an event loop waits long to have it
back. So the keys are read once, in the background, and followed from then on. The file counts what was ever stored in it:
where that is more than this process has stored, another one has too, and the file is asked for each key again.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.sealing import Row

_LOOK_SECONDS = 0.02  # What another process stores is found after no more than these.
_LEAST_ASKED = 32  # Who asks only now and then, as a command does, needs no keys in memory.
_PAGE = 4096
_MORE = 16_384  # With half as many keys again and so many more, all are read anew: those of removed entries stay until then.
_REST = 60.0  # Seconds until the keys are read again after another process has stored something; twice as many the next time.
_LONGEST_REST = 3600.0
_PUTS = "select puts from totals"
_KEYS = (
    "select json_group_array(key) as keys, max(place) as last from"
    " (select key, rowid as place from responses where rowid > :after order by rowid limit :most)"
)
_log = logging.getLogger("kvproxy")


@dataclass(slots=True, eq=False)
class _Keys:
    """Keys as they are read, by their hashes.

    Attributes:
        whole: all of them were read, and those that were stored meanwhile are there too.
        most: with more than these they are read anew, without those of removed entries.
    """

    hashes: set[int] = field(default_factory=set)
    whole: bool = False
    most: int = 0


class KnownKeys:
    """Tells for certain that no entry has a key. Any thread may ask. It takes some 80 bytes of memory for each entry.

    Args:
        query: reads from the file; raises a CacheStoreError where it cannot.
        turn: held by whoever writes in this process.
    """

    def __init__(
        self, query: Callable[[str, Mapping[str, Any]], list[Row]], turn: contextlib.AbstractContextManager[Any]
    ) -> None:
        self._query = query
        self._turn = turn
        self._keys: _Keys | None = None
        self._puts = (0, 0)  # That the file counts, and those of the transaction under way.
        self._asked = 0
        self._looked = self._again = float("-inf")
        self._rest = _REST
        self._reader: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False

    def lacks(self, key: str) -> bool:
        """Whether no entry has a key; False where that must be asked of the file.

        Raises:
            CacheStoreError: the file cannot be read.
        """
        keys = self._keys
        if keys is None or not keys.whole:
            self._asked += 1
            if keys is None and self._asked >= _LEAST_ASKED and time.monotonic() >= self._again:
                self._start()
            return False
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            if not self._alone():
                return False
            self._looked = now
        keys = self._keys
        return keys is not None and keys.whole and hash(key) not in keys.hashes

    def _alone(self) -> bool:
        """Whether nobody else has stored anything since the keys were read; False too where that cannot be told just now."""
        known = self._puts
        counted = self._counted()
        if self._puts != known:
            return False
        if counted in (known[0], sum(known)):
            return True
        self._forget(self._rest)
        self._rest = min(2 * self._rest, _LONGEST_REST)
        return False

    def _counted(self) -> int:
        return int(self._query(_PUTS, {})[0]["puts"])

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction, alone in this process: what `add` is told in it counts once it is committed."""
        try:
            yield
        except BaseException:
            self._puts = (self._puts[0], 0)
            raise
        self._puts = (sum(self._puts), 0)

    def add(self, keys: Iterable[str]) -> None:
        """Keys that the transaction under way stores."""
        hashes = [hash(key) for key in keys]
        known = self._keys
        if known is not None:
            known.hashes.update(hashes)
            if known.whole and len(known.hashes) > known.most:
                self._forget(0.0)
        self._puts = (self._puts[0], self._puts[1] + len(hashes))

    def _forget(self, rest: float) -> None:
        self._keys = None
        self._again = time.monotonic() + rest

    def _start(self) -> None:
        with self._starting:
            # Others may have had them read since they were found missing.
            busy = self._reader is not None and self._reader.is_alive()
            if self._keys is None and not busy and not self._closed:
                self._reader = threading.Thread(target=self._read, name="kvproxy-keys", daemon=True)
                self._reader.start()

    def _read(self) -> None:
        try:
            with self._turn:
                self._puts = (self._counted(), 0)
                keys = self._keys = _Keys()
            # What is stored from now on is added meanwhile, or counted in the file.
            for page in self._pages():
                keys.hashes.update(map(hash, page))
                if self._closed:
                    return
        except CacheStoreError:
            # The store has said so.
            self._forget(_REST)
        except Exception:
            _log.exception("the keys of the store were not read: each is asked of the file")
            self._forget(_LONGEST_REST)
        else:
            keys.most = len(keys.hashes) + len(keys.hashes) // 2 + _MORE
            self._looked = float("-inf")
            keys.whole = True

    def _pages(self) -> Iterator[list[str]]:
        """The keys, as one row for many: Python's lock is handed over for each row."""
        after = -1
        while True:
            row = self._query(_KEYS, {"after": after, "most": _PAGE})[0]
            if row["last"] is None:
                return
            yield json.loads(row["keys"])
            after = row["last"]

    def close(self) -> None:
        """Read no more."""
        with self._starting:
            self._closed = True
        if self._reader is not None:
            self._reader.join()
