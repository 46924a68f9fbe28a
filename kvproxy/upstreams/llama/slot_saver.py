"""Saves slots to files and restores them, within a disk budget.

llama-server may report success for a useless restore: models with sliding windows need `--swa-full` (llama.cpp #26676).
So each restore is verified: the next response must report reuse. Restores stop after several failures.
"""

import logging

from kvproxy.errors import UpstreamError
from kvproxy.upstreams.llama.client import LlamaClient, LlamaRequestRefused, ServerInfo
from kvproxy.upstreams.llama.packed_tokens import Tokens, common_prefix_length, num_tokens
from kvproxy.upstreams.llama.slot_choice import SlotChoice, reusable_tokens
from kvproxy.upstreams.llama.slot_files import SlotFile, SlotFiles
from kvproxy.upstreams.llama.slots import Slot

MAX_FAILURES = 3
"""After this number of consecutive restores without reuse, the server's slots are not restored until it restarts."""
_MIN_UNSAVED_SHARE = 0.2
_MAX_EMPTY_FILE_BYTES = 1024
_log = logging.getLogger(__name__)


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
            [(file.name, file.tokens or b"") for file in self.files.list_restorable(self.identity)]
            if self.is_enabled
            else []
        )

    async def save_and_restore(self, slot: Slot, choice: SlotChoice) -> SlotFile | None:
        """Save the slot if the request would overwrite unsaved tokens, then restore and return the chosen file, if any."""
        if not self.is_enabled:
            return None
        kept = 0 if choice.restore else choice.kept
        if num_tokens(slot.prefix) - kept >= self._min_tokens and self.unsaved_tokens(slot) >= self._min_tokens:
            await self.save(slot)
        file = self.files.get(choice.restore) if choice.restore else None
        return None if file is None else await self._restore(slot, file)

    def unsaved_tokens(self, slot: Slot) -> int:
        saved = (
            common_prefix_length(file.tokens or b"", slot.prefix) for file in self.files.list_restorable(self.identity)
        )
        return num_tokens(slot.prefix) - max(saved, default=0)

    def should_save_idle(self, slot: Slot) -> bool:
        return self.is_enabled and self.unsaved_tokens(slot) >= max(
            self._min_tokens, int(num_tokens(slot.prefix) * _MIN_UNSAVED_SHARE)
        )

    async def save(self, slot: Slot) -> None:
        name = self.files.allocate_name(self.identity)
        written = None
        try:
            if await self._is_same_server():
                written = await self._client.save(slot.id, name)
        except UpstreamError as error:
            _log.warning("%s: slot %d was not saved: %s", self._url, slot.id, error.message)
        finally:
            if written is None:
                self.files.discard(name)
        if written is None:
            return
        self.saves += 1
        if written.tokens == slot.tokens and written.num_bytes <= self._max_bytes:
            self.files.commit(name, self.identity, slot.prefix, written.tokens, written.num_bytes)
        else:
            # Another client used the slot, or the file exceeds the budget.
            self.files.discard(name, written.num_bytes)
        self.files.evict(self._max_bytes)
        await self._shrink_unused_files(slot, name)

    async def _restore(self, slot: Slot, file: SlotFile) -> SlotFile | None:
        try:
            if not await self._is_same_server():
                return None
            slot.prefix = b""
            read = await self._client.restore(slot.id, file.name)
            slot.tokens = read.tokens
            if read.tokens != file.num_tokens:
                # Another server wrote this file, perhaps with another model.
                await self._client.erase(slot.id)
                raise LlamaRequestRefused(f"{file.name} has {read.tokens} tokens, not {file.num_tokens}")
        except LlamaRequestRefused as error:
            _log.warning("%s: a saved slot is lost: %s", self._url, error.message)
            slot.tokens = 0
            self.files.discard(file.name)
            return None
        except UpstreamError as error:
            _log.warning("%s: a slot was not restored: %s", self._url, error.message)
            return None
        slot.prefix = file.tokens or b""
        self.restores += 1
        self.files.touch(file.name)
        return file

    def verify_restore(self, file: SlotFile, prompt: Tokens, reused: int) -> None:
        if reused >= reusable_tokens(common_prefix_length(file.tokens or b"", prompt), prompt) // 2:
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
        identity, _ = await self._client.identity()
        return identity == self.identity

    async def _shrink_unused_files(self, slot: Slot, name: str) -> None:
        unused = [file for file in self.files.list_unused() if file.num_bytes > _MAX_EMPTY_FILE_BYTES]
        if self.files.total_bytes <= self._max_bytes or not unused:
            return
        restored = None
        try:
            await self._client.erase(slot.id)
            for file in unused:
                if self.files.total_bytes > self._max_bytes and self.files.reserve(file.name):
                    num_bytes = None
                    try:
                        num_bytes = (await self._client.save(slot.id, file.name)).num_bytes
                    finally:
                        self.files.discard(file.name, num_bytes)
            if name in dict(self.saved_prefixes()):
                restored = await self._client.restore(slot.id, name)
        except UpstreamError as error:
            _log.warning("%s: unused files of slots were not shrunk: %s", self._url, error.message)
        finally:
            if restored is None:
                slot.prefix, slot.tokens = b"", 0
