"""Chooses the slots of a llama.cpp upstream for requests."""

import asyncio
import logging
import sqlite3
from collections.abc import Coroutine
from pathlib import Path

from kvproxy.apis.api_request import ApiRequest
from kvproxy.errors import KvproxyError
from kvproxy.privacy.encryption import Cipher
from kvproxy.settings.upstreams import SlotSettings
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.llama.client import LlamaClient, ServerInfo, Tokens
from kvproxy.upstreams.llama.placement import Placement
from kvproxy.upstreams.llama.slot_files import SlotFiles, SlotSaver
from kvproxy.upstreams.llama.slots import Slot, SlotChoice, SlotTable, choose_slot
from kvproxy.upstreams.status import SlotsStatus

_CLOSE_TIMEOUT_SECONDS = 10.0
_log = logging.getLogger(__name__)


class LlamaServer:
    """An upstream that may be llama.cpp. If it is, this class chooses the slots of its requests."""

    def __init__(
        self, upstream: UpstreamClient, settings: SlotSettings, data: Path, cipher: Cipher | None = None
    ) -> None:
        self.url = upstream.url
        self.settings = settings
        self.client = LlamaClient(upstream)
        self._upstream = upstream
        self.is_identified = False  # `identify` succeeded since the last failed health check.
        self.table = SlotTable(self.client)
        self.saver: SlotSaver | None = None  # None if the server cannot save slots.
        self.unplaced_requests = 0  # Number of requests for which the server chose the slot.
        self._data = data
        self._cipher = cipher
        self._info: ServerInfo | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_active(self) -> bool:
        """Whether the upstream is llama.cpp and reports its slots."""
        return self._info is not None and self._info.lists_slots

    def problems(self) -> list[str]:
        problem = self.saver.problem() if self.saver else None
        return [problem] if problem else []

    def advice(self) -> list[str]:
        info = self._info
        if info is None:
            return []
        if not info.lists_slots:
            return ["llama-server does not report its slots: start it with --slots"]
        if not info.saves_slots:
            return ["llama-server has no folder for slots: start it with --slot-save-path FOLDER to keep them on disk"]
        advice = []
        if info.has_adapters:
            advice.append("slots are not saved: with LoRA adapters, the adapter of a saved slot is unknown")
        if self.table.clears_idle_slots:
            advice.append("llama-server clears idle slots: start it with -np N to set the number of slots")
        if self._cipher is not None and self.saver is not None:
            advice.append(
                "llama-server writes slots without encryption: put its --slot-save-path on an encrypted disk, or set"
                " slots.disk_size = 0"
            )
        return advice

    def status(self) -> SlotsStatus | None:
        if not self.is_active:
            return None
        slots, saver = self.table.slots.values(), self.saver
        tokens = sum(slot.tokens for slot in slots)
        if saver is None:
            return SlotsStatus(len(slots), tokens, 0, 0, 0, 0, 0)
        files = saver.files
        saved = len(files.list_restorable(saver.identity))
        return SlotsStatus(len(slots), tokens, saved, files.total_bytes, saver.saves, saver.restores, saver.confirmed)

    async def identify(self) -> None:
        """Detect llama.cpp and its configuration. `is_identified` stays false if the server does not respond."""
        try:
            info = await self.client.server_info()
            if info is None or info != self._info:
                await self._configure(info)
            elif self.saver is not None:
                # The server may have restarted with other flags.
                self.saver.failures = 0
            if self.is_active:
                await self.table.refresh()
        except KvproxyError as error:
            _log.debug("%s was not identified: %s", self.url, error.message)
        else:
            self.is_identified = True

    async def _configure(self, info: ServerInfo | None) -> None:
        if info is not None:
            _log.info("%s is llama.cpp with %d slots", self.url, info.slots)
        saver, self.saver, self._info = self.saver, None, None
        if info and info.lists_slots and info.saves_slots and not info.has_adapters and self.settings.disk_size:
            files = saver.files if saver else await self._open_files()
            if files is not None:
                settings = self.settings
                self.saver = SlotSaver(self.url, self.client, info, files, settings.disk_size, settings.min_tokens)
        elif saver is not None:
            await asyncio.to_thread(saver.files.close)
        # Each connection, also an idle one, occupies one of the few threads of llama-server.
        self._upstream.keeps_connections = info is None
        self._info, self.table = info, SlotTable(self.client)
        self.client.forget_texts()

    async def _open_files(self) -> SlotFiles | None:
        path = self._data / "slots.db"
        try:
            return await asyncio.to_thread(SlotFiles, path, self.url, cipher=self._cipher)
        except (sqlite3.Error, OSError) as error:
            _log.warning("slots of %s are not saved: cannot open %s: %s", self.url, path, error)
            return None

    async def place(self, request: ApiRequest) -> Placement | None:
        """Choose and lock a slot, and restore a file into it if useful; None if the server must choose the slot."""
        placement = await self._try_place(request)
        # A request without a placement may use any slot.
        self.unplaced_requests += placement is None and self.is_active
        return placement

    async def _try_place(self, request: ApiRequest) -> Placement | None:
        required_id = request.body.get("id_slot")
        if (
            not self.is_active
            or placement_obstacle(request) is not None
            or not (required_id is None or (type(required_id) is int and required_id >= 0))
        ):
            return None
        if self.table.clears_idle_slots and self.saver is None:
            # The server consults its own cache of cleared slots only if it chooses the slot.
            return None
        try:
            prompt = await self.client.tokenize_request(request)
            await self.refresh()
            leased = await self.table.lease(
                lambda free: self.choose_slot(prompt, free), required_id, self.settings.queue_timeout
            )
        except KvproxyError as error:
            _log.debug("%s chooses the slot itself: %s", self.url, error.message)
            return None
        if leased is None:
            return None
        slot, choice = leased
        placement = Placement(self, slot, choice, prompt, request)
        try:
            if self.saver is not None:
                if self.table.clears_idle_slots:
                    await self._save_idle_slots(self.saver)
                placement.restored = await self.saver.save_and_restore(slot, choice)
        except BaseException:
            placement.abandon()
            raise
        return placement

    async def refresh(self) -> None:
        """Read the slots' state, and identify the server again if it restarted. Raises UpstreamError."""
        if await self.table.refresh():
            _log.info("%s restarted with empty slots", self.url)
            await self.identify()

    def choose_slot(self, prompt: Tokens, slots: list[Slot]) -> SlotChoice | None:
        prefixes = self.saver.saved_prefixes() if self.saver else []
        return choose_slot(prompt, slots, prefixes, self.settings.min_tokens)

    def release(self, slot: Slot) -> None:
        """Release a slot, and save it to a file if it stays idle."""
        self.table.release(slot)
        if self.saver is not None and self.saver.should_save_idle(slot):
            self.start_task(self._save_later(slot, slot.version))

    def start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _save_later(self, slot: Slot, version: int) -> None:
        await asyncio.sleep(self.settings.save_after)
        if slot.version == version and slot.is_free and self.saver is not None:
            await self._save(slot, self.saver)

    async def _save_idle_slots(self, saver: SlotSaver) -> None:
        for slot in list(self.table.slots.values()):
            if slot.is_free and saver.is_enabled and saver.unsaved_tokens(slot) >= self.settings.min_tokens:
                await self._save(slot, saver)

    async def _save(self, slot: Slot, saver: SlotSaver) -> None:
        slot.lock(saving=True)
        try:
            await saver.save(slot)
        finally:
            self.table.release(slot)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.saver is None:
            return
        saver, self.saver = self.saver, None
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):
                await self._save_idle_slots(saver)
        except TimeoutError:
            _log.warning("%s: slots were not saved within %g s", self.url, _CLOSE_TIMEOUT_SECONDS)
        await asyncio.to_thread(saver.files.close)


def placement_obstacle(request: ApiRequest) -> str | None:
    """Return why the server must choose the slot of a request; None if kvproxy can choose it."""
    body = request.body
    if request.api.name not in ("chat", "completions", "messages", "responses"):
        return f"requests to {request.api.name} use no slot"
    obstacles = {
        "n above 1": body.get("n") not in (None, 1),
        "lora": body.get("lora") is not None,
        "cache_prompt false": body.get("cache_prompt") is False,
    }
    found = next((name for name, is_set in obstacles.items() if is_set), None)
    return None if found is None else f"llama-server chooses the slots of requests with {found}"
