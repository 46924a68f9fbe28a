"""What is saved of slots: which prefix each file in a server's `--slot-save-path` holds, kept in a database of our own.

llama-server writes and reads the files, and deletes none. So a file that is wanted no more is written over by the next one.
"""

import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvproxy.encryption import Cipher
from kvproxy.upstreams.llama.packed_tokens import Tokens, shared

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    url TEXT, name TEXT, identity TEXT, tokens BLOB, held INTEGER, size INTEGER, used REAL, PRIMARY KEY (url, name)
);
CREATE TABLE IF NOT EXISTS pins (url TEXT, pin TEXT, file TEXT, until REAL, PRIMARY KEY (url, pin));
"""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Saved:
    """One file.

    Attributes:
        name: its name.
        identity: of the server that wrote it.
        tokens: the prefix that it holds, as far as that is known; None where it holds nothing of use any more.
        held: how many tokens it holds.
        size: its bytes.
        used: when it was saved or restored last.
    """

    name: str
    identity: str
    tokens: Tokens | None
    held: int
    size: int
    used: float


@dataclass(frozen=True, slots=True)
class Pin:
    """A file that is not evicted until a time; for ever where that is None."""

    name: str
    file: str
    until: float | None


class Shelf:
    """The files of one server.

    Args:
        path: the database; every server's files are in the same one.
        url: the server's URL.
        clock: seconds since 1970.
        cipher: encrypts the prefixes in the database; None writes them as they are.

    Raises:
        sqlite3.Error: the database cannot be used.
    """

    def __init__(
        self, path: Path, url: str, clock: Callable[[], float] = time.time, cipher: Cipher | None = None
    ) -> None:
        self._url = url
        self._cipher = cipher
        self._clock = clock
        self._begun: set[str] = set()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Who asks is on the event loop; one thread of our own writes, in the order of the calls.
        self._writer = ThreadPoolExecutor(1, "kvproxy-slots")
        self._database = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            # A file that is forgotten costs one computation, so no write waits for the disk.
            self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + _SCHEMA)
            columns = "name, identity, tokens, held, size, used"
            rows = self._database.execute(f"SELECT {columns} FROM files WHERE url = ?", (url,))
            self._files = {row[0]: self._opened(Saved(*row)) for row in rows}
            pins = self._database.execute("SELECT pin, file, until FROM pins WHERE url = ?", (url,))
            self._pins = {row[0]: Pin(*row) for row in pins if row[1] in self._files}
        except sqlite3.Error:
            self._database.close()
            raise

    def close(self) -> None:
        """Write what is still to be written, and release the database."""
        self._writer.shutdown()
        self._database.close()

    def of(self, identity: str) -> list[Saved]:
        """What was saved under an identity, the most recently used first."""
        found = [file for file in self._files.values() if file.tokens is not None and file.identity == identity]
        return sorted(found, key=lambda file: -file.used)

    def get(self, name: str) -> Saved | None:
        """One file by its name."""
        return self._files.get(name)

    def covered(self, identity: str, tokens: Tokens) -> int:
        """How many of the first tokens are in one of the files."""
        return max((shared(file.tokens or b"", tokens) for file in self.of(identity)), default=0)

    @property
    def size(self) -> int:
        """Bytes of all files, those of no more use among them."""
        return sum(file.size for file in self._files.values())

    def begin(self, identity: str) -> str:
        """A name to write to: of a file that is of no more use, or a new one. It is nobody else's until `end` or `drop`."""
        # Another model's file is not written over: a crash could leave it with the wrong identity.
        unused = next((file for file in self.unused() if file.identity == identity), None)
        # Proxies that share a folder must not write to each other's files.
        if unused is None:
            unused = Saved(f"kvproxy-{secrets.token_hex(8)}.bin", identity, None, 0, 0, 0.0)
            self._put(unused)
        self._begun.add(unused.name)
        return unused.name

    def claim(self, name: str) -> bool:
        """Begin to write to a file that is of no more use; False where somebody else does, or did meanwhile."""
        unused = any(file.name == name for file in self.unused())
        if unused:
            self._begun.add(name)
        return unused

    def end(self, name: str, identity: str, tokens: Tokens, held: int, size: int) -> None:
        """Tell that a file was written. Files that hold no more than the beginning of it are of no more use."""
        for file in self.of(identity):
            if file.name != name and tokens.startswith(file.tokens or b""):
                for pin in [pin for pin in self._pins.values() if pin.file == file.name]:
                    self.pin(pin.name, name, pin.until)
                self.drop(file.name)
        self._begun.discard(name)
        self._put(Saved(name, identity, tokens, held, size, self._clock()))

    def touch(self, name: str) -> None:
        """Tell that a file was used."""
        file = self._files[name]
        file.used = self._clock()
        self._write("UPDATE files SET used = ? WHERE url = ? AND name = ?", file.used, self._url, name)

    def drop(self, name: str, size: int | None = None) -> None:
        """Tell that a file is of no more use, and its bytes where they changed."""
        self._begun.discard(name)
        file = self._files.get(name)
        if file is None:
            return
        file.tokens = None
        file.size = file.size if size is None else size
        self._put(file)
        for pin in [pin for pin in self._pins.values() if pin.file == name]:
            self.unpin(pin.name)

    def unused(self) -> Iterator[Saved]:
        """Files of no more use, the largest first."""
        found = [file for file in self._files.values() if file.tokens is None and file.name not in self._begun]
        return iter(sorted(found, key=lambda file: -file.size))

    def evict(self, most: int) -> None:
        """Give up what was used longest ago, pins aside, until what is of use has at most so many bytes."""
        pinned = {pin.file for pin in self.pins()}
        kept = [file for file in self._files.values() if file.tokens is not None]
        over = sum(file.size for file in kept) - most
        for file in sorted(kept, key=lambda file: file.used):
            if over <= 0:
                return
            if file.name not in pinned:
                over -= file.size
                self.drop(file.name)

    def pins(self) -> list[Pin]:
        """Pins that have not run out."""
        now = self._clock()
        for pin in [pin for pin in self._pins.values() if pin.until is not None and pin.until <= now]:
            self.unpin(pin.name)
        return list(self._pins.values())

    def pin(self, name: str, file: str, until: float | None) -> None:
        """Keep a file from being evicted."""
        self._pins[name] = Pin(name, file, until)
        self._write("INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?)", self._url, name, file, until)

    def unpin(self, name: str) -> bool:
        """Let it go; False where there is no such pin."""
        self._write("DELETE FROM pins WHERE url = ? AND pin = ?", self._url, name)
        return self._pins.pop(name, None) is not None

    def _put(self, file: Saved) -> None:
        self._files[file.name] = file
        tokens = file.tokens
        if tokens is not None and self._cipher is not None:
            tokens = self._cipher.seal(tokens, file.name.encode())
        values = (self._url, file.name, file.identity, tokens, file.held, file.size, file.used)
        self._write("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

    def _opened(self, file: Saved) -> Saved:
        """A row of the database with its tokens; without them where the key does not open them."""
        if file.tokens is not None and self._cipher is not None:
            try:
                file.tokens = self._cipher.open(file.tokens, file.name.encode())
            except ValueError:
                file.tokens = None
        return file

    def _write(self, statement: str, *values: object) -> None:
        self._writer.submit(self._execute, statement, values)

    def _execute(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            _log.warning("what is saved of slots cannot be written down, and is forgotten at the next start: %s", error)
