"""Slots in files: a server writes and reads them in its `--slot-save-path`, and a database has the tokens of each file.

The proxy cannot delete files on the server, so later saves overwrite unused files. llama-server may report success for a
useless restore: models with sliding windows need `--swa-full` (llama.cpp #26676). So the response after a restore must
report reuse, and restores stop after several failures.
"""

import logging
import secrets
import sqlite3
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.errors import UpstreamError
from kvproxy.privacy.encryption import Cipher
from kvproxy.upstreams.llama.client import LlamaClient, LlamaRequestRefused, ServerInfo, Tokens
from kvproxy.upstreams.llama.slots import Slot, SlotChoice, reusable_tokens

MAX_FAILURES = 3  # Consecutive restores without reuse, after which no slot is restored until the server restarts.
_MIN_UNSAVED_SHARE = 0.2
_MAX_EMPTY_FILE_BYTES = 1024
_PRAGMAS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON;"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    url TEXT, name TEXT, identity TEXT, tokens BLOB, held INTEGER, size INTEGER, used REAL, PRIMARY KEY (url, name)
);
"""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SlotFile:
    name: str
    identity: str  # See `ServerInfo`.
    tokens: Tokens  # Known tokens of the slot; empty if the file is unused and may be overwritten.
    num_tokens: int  # Number of tokens in the file; `tokens` may have only the first of them.
    num_bytes: int
    used: float  # Time of the last save or restore, in seconds since the epoch.


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
            self._database.executescript(_PRAGMAS + _SCHEMA)
            columns = "name, identity, tokens, held, size, used"
            rows = self._database.execute(f"SELECT {columns} FROM files WHERE url = ?", (url,))
            self._files = {
                name: SlotFile(name, identity, self._read_tokens(name, tokens), *rest)
                for name, identity, tokens, *rest in rows
            }
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        self._writer.shutdown()
        self._database.close()

    def list_restorable(self, identity: str) -> list[SlotFile]:
        """Return the files that a server with this identity can restore, most recently used first."""
        files = [file for file in self._files.values() if file.tokens and file.identity == identity]
        return sorted(files, key=lambda file: -file.used)

    def get(self, name: str) -> SlotFile | None:
        return self._files.get(name)

    @property
    def total_bytes(self) -> int:
        return sum(file.num_bytes for file in self._files.values())

    @property
    def num_files(self) -> int:
        return len(self._files)

    def list_with_content(self) -> list[SlotFile]:
        """Return the files that may contain tokens, including unused files and files of interrupted saves."""
        return [file for file in self._files.values() if not 0 < file.num_bytes <= _MAX_EMPTY_FILE_BYTES]

    def allocate_name(self, identity: str) -> str:
        """Return the name of an unused file of this server, or a new name. It is reserved until `commit` or `discard`."""
        # After a crash, a reused file of another model could have the wrong identity.
        file = next((file for file in self.list_unused() if file.identity == identity), None)
        if file is None:
            # Several proxies may share the folder.
            file = SlotFile(f"kvproxy-{secrets.token_hex(8)}.bin", identity, array("i"), 0, 0, 0.0)
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
        """Record a written file, and discard the files of the same server identity whose tokens are a prefix of `tokens`."""
        for file in self.list_restorable(identity):
            if file.name != name and tokens[: len(file.tokens)] == file.tokens:
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
        file.tokens = array("i")
        file.num_bytes = file.num_bytes if num_bytes is None else num_bytes
        self._store(file)

    def list_unused(self) -> list[SlotFile]:
        files = [file for file in self._files.values() if not file.tokens and file.name not in self._writing]
        return sorted(files, key=lambda file: -file.num_bytes)

    def evict(self, max_bytes: int) -> None:
        """Discard the least recently used files until the other files have at most `max_bytes`."""
        saved = [file for file in self._files.values() if file.tokens]
        excess = sum(file.num_bytes for file in saved) - max_bytes
        for file in sorted(saved, key=lambda file: file.used):
            if excess <= 0:
                return
            excess -= file.num_bytes
            self.discard(file.name)

    def erase_deleted_rows(self) -> None:
        """Erase the tokens of discarded files also in the database's write-ahead log."""
        self._write("PRAGMA wal_checkpoint(TRUNCATE)")

    def _store(self, file: SlotFile) -> None:
        self._files[file.name] = file
        tokens = file.tokens.tobytes() or None
        if tokens is not None and self._cipher is not None:
            tokens = self._cipher.encrypt(tokens, file.name.encode())
        values = (self._url, file.name, file.identity, tokens, file.num_tokens, file.num_bytes, file.used)
        self._write("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

    def _read_tokens(self, name: str, stored: bytes | None) -> Tokens:
        if stored is not None and self._cipher is not None:
            try:
                stored = self._cipher.decrypt(stored, name.encode())
            except ValueError:
                stored = None
        return array("i", stored or b"")

    def _write(self, statement: str, *values: object) -> None:
        self._writer.submit(self._execute, statement, values)

    def _execute(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            _log.warning(
                "the database of saved slots cannot be written, so files are lost at the next start: %s", error
            )


class SlotSaver:
    """Saves and restores the slots of one server. The caller must lock the slot first."""

    def __init__(
        self, url: str, client: LlamaClient, info: ServerInfo, files: SlotFiles, max_bytes: int, min_tokens: int
    ) -> None:
        self.files = files
        self.identity = info.identity
        self.saves = self.restores = self.confirmed = self.failures = 0
        self._url = url
        self._client = client
        self._max_bytes = max_bytes
        self._min_tokens = min_tokens

    @property
    def is_enabled(self) -> bool:
        return self.failures < MAX_FAILURES

    def saved_prefixes(self) -> list[tuple[str, Tokens]]:
        return (
            [(file.name, file.tokens) for file in self.files.list_restorable(self.identity)] if self.is_enabled else []
        )

    async def save_and_restore(self, slot: Slot, choice: SlotChoice) -> SlotFile | None:
        """Save the slot if the request would overwrite unsaved tokens, then restore and return the chosen file, if any."""
        if not self.is_enabled:
            return None
        kept = 0 if choice.restore else choice.kept
        if len(slot.prefix) - kept >= self._min_tokens and self.unsaved_tokens(slot) >= self._min_tokens:
            await self.save(slot)
        file = self.files.get(choice.restore) if choice.restore else None
        return None if file is None else await self._restore(slot, file)

    def unsaved_tokens(self, slot: Slot) -> int:
        saved = (common_prefix_length(file.tokens, slot.prefix) for file in self.files.list_restorable(self.identity))
        return len(slot.prefix) - max(saved, default=0)

    def should_save_idle(self, slot: Slot) -> bool:
        return self.is_enabled and self.unsaved_tokens(slot) >= max(
            self._min_tokens, int(len(slot.prefix) * _MIN_UNSAVED_SHARE)
        )

    async def save(self, slot: Slot) -> None:
        name = self.files.allocate_name(self.identity)
        written = None
        try:
            if await self._is_same_server():
                written = await self._client.save_slot(slot.id, name)
        except UpstreamError as error:
            _log.warning("%s: slot %d was not saved: %s", self._url, slot.id, error.message)
        finally:
            if written is None:
                self.files.discard(name)
        if written is None:
            return
        self.saves += 1
        tokens, num_bytes = written
        if tokens == slot.tokens and num_bytes <= self._max_bytes:
            self.files.commit(name, self.identity, slot.prefix, tokens, num_bytes)
        else:
            # Another client used the slot, or the file exceeds the budget.
            self.files.discard(name, num_bytes)
        self.files.evict(self._max_bytes)
        await self._shrink_unused_files(slot, name)

    async def empty_files(self, erased_slot: int) -> str | None:
        """Overwrite all files with an erased slot, because the server cannot delete them; return the failure, if any."""
        files = self.files.list_with_content()
        for file in files:
            self.files.discard(file.name)
        for file in files:
            if not self.files.reserve(file.name):
                continue
            num_bytes = None
            try:
                num_bytes = (await self._client.save_slot(erased_slot, file.name))[1]
            except UpstreamError as error:
                return error.message
            finally:
                self.files.discard(file.name, num_bytes)
        self.files.erase_deleted_rows()
        return None

    async def _restore(self, slot: Slot, file: SlotFile) -> SlotFile | None:
        try:
            if not await self._is_same_server():
                return None
            slot.prefix = array("i")
            slot.tokens = await self._client.restore_slot(slot.id, file.name)
            if slot.tokens != file.num_tokens:
                # Another server wrote this file, perhaps with another model.
                await self._client.erase_slot(slot.id)
                raise LlamaRequestRefused(f"{file.name} has {slot.tokens} tokens, not {file.num_tokens}")
        except LlamaRequestRefused as error:
            _log.warning("%s: a saved slot is lost: %s", self._url, error.message)
            slot.tokens = 0
            self.files.discard(file.name)
            return None
        except UpstreamError as error:
            _log.warning("%s: a slot was not restored: %s", self._url, error.message)
            return None
        slot.prefix = file.tokens
        self.restores += 1
        self.files.touch(file.name)
        return file

    def verify_restore(self, file: SlotFile, prompt: Tokens, reused: int) -> None:
        if reused >= reusable_tokens(common_prefix_length(file.tokens, prompt), prompt) // 2:
            self.confirmed += 1
            self.failures = 0
            return
        self.failures += 1
        if not self.is_enabled:
            _log.warning("%s: %s", self._url, self.problem())

    def problem(self) -> str | None:
        if self.is_enabled:
            return None
        return (
            f"restores of slots are off: after {MAX_FAILURES} successful restores the server reused no token; start"
            " llama-server with --swa-full if the model has sliding windows"
        )

    async def _is_same_server(self) -> bool:
        identity, _ = await self._client.identity_and_properties()
        return identity == self.identity

    async def _shrink_unused_files(self, slot: Slot, name: str) -> None:
        unused = [file for file in self.files.list_unused() if file.num_bytes > _MAX_EMPTY_FILE_BYTES]
        if self.files.total_bytes <= self._max_bytes or not unused:
            return
        restored = None
        try:
            await self._client.erase_slot(slot.id)
            for file in unused:
                if self.files.total_bytes > self._max_bytes and self.files.reserve(file.name):
                    num_bytes = None
                    try:
                        num_bytes = (await self._client.save_slot(slot.id, file.name))[1]
                    finally:
                        self.files.discard(file.name, num_bytes)
            if name in dict(self.saved_prefixes()):
                restored = await self._client.restore_slot(slot.id, name)
        except UpstreamError as error:
            _log.warning("%s: unused files of slots were not shrunk: %s", self._url, error.message)
        finally:
            if restored is None:
                slot.prefix, slot.tokens = array("i"), 0
