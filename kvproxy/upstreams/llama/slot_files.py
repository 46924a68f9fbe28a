"""Database of the slot files in a server's `--slot-save-path`, with the tokens of each file.

The proxy cannot delete files on the server, so later saves overwrite unused files.
"""

import logging
import secrets
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvproxy.encryption import Cipher
from kvproxy.upstreams.llama.packed_tokens import Tokens

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    url TEXT, name TEXT, identity TEXT, tokens BLOB, held INTEGER, size INTEGER, used REAL, PRIMARY KEY (url, name)
);
"""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SlotFile:
    """A slot in a file.

    Attributes:
        identity: see `ServerInfo`.
        tokens: known tokens of the slot; None if the file is unused and may be overwritten.
        num_tokens: number of tokens in the file; `tokens` may have only the first of them.
        used: time of the last save or restore, in seconds since the epoch.
    """

    name: str
    identity: str
    tokens: Tokens | None
    num_tokens: int
    num_bytes: int
    used: float


class SlotFiles:
    """The slot files of one server. All servers share a database. The constructor raises sqlite3.Error."""

    def __init__(
        self, path: Path, url: str, clock: Callable[[], float] = time.time, cipher: Cipher | None = None
    ) -> None:
        self._url = url
        self._cipher = cipher
        self._clock = clock
        self._writing: set[str] = set()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One thread writes, so that the event loop does not wait for the disk.
        self._writer = ThreadPoolExecutor(1, "kvproxy-slots")
        self._database = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            # A lost row costs one computation of a prompt, so commits need no fsync.
            self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + _SCHEMA)
            columns = "name, identity, tokens, held, size, used"
            rows = self._database.execute(f"SELECT {columns} FROM files WHERE url = ?", (url,))
            self._files = {row[0]: self._decrypt(SlotFile(*row)) for row in rows}
        except sqlite3.Error:
            self._database.close()
            raise

    def close(self) -> None:
        self._writer.shutdown()
        self._database.close()

    def list_restorable(self, identity: str) -> list[SlotFile]:
        """Return the files that a server with this identity can restore, most recently used first."""
        found = [file for file in self._files.values() if file.tokens is not None and file.identity == identity]
        return sorted(found, key=lambda file: -file.used)

    def get(self, name: str) -> SlotFile | None:
        return self._files.get(name)

    @property
    def total_bytes(self) -> int:
        return sum(file.num_bytes for file in self._files.values())

    def allocate_name(self, identity: str) -> str:
        """Return the name of an unused file of this server, or a new name. It is reserved until `commit` or `discard`."""
        # After a crash, a reused file of another model could have the wrong identity.
        file = next((file for file in self.list_unused() if file.identity == identity), None)
        if file is None:
            # Several proxies may share the folder.
            file = SlotFile(f"kvproxy-{secrets.token_hex(8)}.bin", identity, None, 0, 0, 0.0)
            self._store(file)
        self._writing.add(file.name)
        return file.name

    def reserve(self, name: str) -> bool:
        """Reserve an unused file until `commit` or `discard`; return False if the file is in use."""
        is_unused = any(file.name == name for file in self.list_unused())
        if is_unused:
            self._writing.add(name)
        return is_unused

    def commit(self, name: str, identity: str, tokens: Tokens, num_tokens: int, num_bytes: int) -> None:
        """Record a written file, and discard the files whose tokens are a prefix of `tokens`."""
        for file in self.list_restorable(identity):
            if file.name != name and tokens.startswith(file.tokens or b""):
                self.discard(file.name)
        self._writing.discard(name)
        self._store(SlotFile(name, identity, tokens, num_tokens, num_bytes, self._clock()))

    def touch(self, name: str) -> None:
        file = self._files[name]
        file.used = self._clock()
        self._write("UPDATE files SET used = ? WHERE url = ? AND name = ?", file.used, self._url, name)

    def discard(self, name: str, num_bytes: int | None = None) -> None:
        """Mark a file as unused. `num_bytes` is its new size; None if it did not change."""
        self._writing.discard(name)
        file = self._files.get(name)
        if file is None:
            return
        file.tokens = None
        file.num_bytes = file.num_bytes if num_bytes is None else num_bytes
        self._store(file)

    def list_unused(self) -> list[SlotFile]:
        found = [file for file in self._files.values() if file.tokens is None and file.name not in self._writing]
        return sorted(found, key=lambda file: -file.num_bytes)

    def evict(self, max_bytes: int) -> None:
        """Discard the least recently used files until the other files have at most `max_bytes`."""
        saved = [file for file in self._files.values() if file.tokens is not None]
        excess = sum(file.num_bytes for file in saved) - max_bytes
        for file in sorted(saved, key=lambda file: file.used):
            if excess <= 0:
                return
            excess -= file.num_bytes
            self.discard(file.name)

    def _store(self, file: SlotFile) -> None:
        self._files[file.name] = file
        tokens = file.tokens
        if tokens is not None and self._cipher is not None:
            tokens = self._cipher.encrypt(tokens, file.name.encode())
        values = (self._url, file.name, file.identity, tokens, file.num_tokens, file.num_bytes, file.used)
        self._write("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

    def _decrypt(self, file: SlotFile) -> SlotFile:
        if file.tokens is not None and self._cipher is not None:
            try:
                file.tokens = self._cipher.decrypt(file.tokens, file.name.encode())
            except ValueError:
                file.tokens = None
        return file

    def _write(self, statement: str, *values: object) -> None:
        self._writer.submit(self._execute, statement, values)

    def _execute(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            _log.warning(
                "the database of saved slots cannot be written, so files are lost at the next start: %s", error
            )
