"""One upstream that may be llama.cpp's server: what its slots hold, and which of them a request gets."""

import asyncio
import logging
import sqlite3
from collections.abc import Coroutine
from pathlib import Path

from kvproxy.apis.request import ApiRequest
from kvproxy.encryption import Cipher
from kvproxy.errors import KvproxyError
from kvproxy.settings.upstreams import SlotSettings
from kvproxy.upstreams.client import Upstream
from kvproxy.upstreams.llama.client import Facts, LlamaRoutes
from kvproxy.upstreams.llama.packed_tokens import Tokens
from kvproxy.upstreams.llama.placement import Placement
from kvproxy.upstreams.llama.slot_choice import Held, Plan, choose
from kvproxy.upstreams.llama.slot_files import Shelf
from kvproxy.upstreams.llama.slot_saver import Keeper
from kvproxy.upstreams.llama.slots import Slots, SlotsStatus, View

_CLOSING = 10.0
"""Seconds that slots may take to be saved when the proxy stops."""
_log = logging.getLogger(__name__)


class LlamaServer:
    """The slots of one upstream; nothing at all where that is no llama.cpp.

    Args:
        upstream: the server.
        settings: what is kept, and how long requests wait.
        data: folder of the database that tells what is on disk.
        cipher: encrypts that database.

    Attributes:
        asked: whether the server has told what it is since it was last away.
        slots: its slots.
        keeper: what saves and restores; None where nothing is.
        strangers: requests for which the server chose the slot.
    """

    def __init__(self, upstream: Upstream, settings: SlotSettings, data: Path, cipher: Cipher | None = None) -> None:
        self.url = upstream.url
        self.settings = settings
        self.routes = LlamaRoutes(upstream)
        self.asked = False
        self.slots = Slots(self.routes)
        self.keeper: Keeper | None = None
        self.strangers = 0
        self._data = data
        self._cipher = cipher
        self._facts: Facts | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def active(self) -> bool:
        """Whether this is llama.cpp, and its slots are known."""
        return self._facts is not None and self._facts.told

    def notes(self) -> list[str]:
        """What is wrong with its slots, each with the fix."""
        trouble = self.keeper.trouble() if self.keeper else None
        return [trouble] if trouble else []

    def advice(self) -> list[str]:
        """What keeps its slots from being used to the full, each with the fix."""
        facts = self._facts
        if facts is None:
            return []
        if not facts.told:
            return ["llama-server does not tell of its slots: start it with --slots"]
        if not facts.saves:
            return [
                "llama-server has no folder for slots: start it with --slot-save-path FOLDER, and a restart loses none"
            ]
        found = []
        if facts.adapters:
            found.append(
                "slots are not saved: LoRA adapters are loaded, and a file does not tell by which it was computed"
            )
        if self.slots.clears:
            found.append(
                "llama-server clears idle slots when another one begins: start it with -np N, a number of slots"
            )
        if self._cipher is not None and self.keeper is not None:
            found.append(
                "llama-server writes slots as they are, whatever is encrypted here: put its --slot-save-path on an encrypted"
                " disk, or set slots.disk_size = 0"
            )
        return found

    def status(self) -> SlotsStatus | None:
        """What `kvproxy upstreams` shows; None where the slots are not known."""
        if not self.active:
            return None
        views = self.slots.views.values()
        keeper, held = self.keeper, sum(view.tokens for view in views)
        if keeper is None:
            return SlotsStatus(len(views), held, 0, 0, 0, 0, 0)
        files = len(keeper.shelf.of(keeper.identity))
        return SlotsStatus(len(views), held, files, keeper.shelf.size, keeper.saves, keeper.restores, keeper.shown)

    async def recognise(self) -> None:
        """Ask the server what it is; never raises."""
        try:
            facts = await self.routes.facts()
            if facts is None or facts != self._facts:
                await self._begin(facts)
            elif self.keeper is not None:
                # It may have been started with other flags.
                self.keeper.failed = 0
            if self.active:
                await self.slots.look()
        except KvproxyError as error:
            _log.debug("%s did not tell what it is: %s", self.url, error.message)
        else:
            self.asked = True

    async def _begin(self, facts: Facts | None) -> None:
        if facts is not None:
            _log.info("%s is llama.cpp with %d slots", self.url, facts.slots)
        shelf, self.keeper, self._facts = self.keeper.shelf if self.keeper else None, None, None
        keeps = facts is not None and facts.told and facts.saves and not facts.adapters and self.settings.disk_size > 0
        if shelf is None and keeps:
            path = self._data / "slots.db"
            try:
                shelf = await asyncio.to_thread(Shelf, path, self.url, cipher=self._cipher)
            except (sqlite3.Error, OSError) as error:
                _log.warning("slots of %s are not saved: %s cannot be used: %s", self.url, path, error)
        if shelf is not None and keeps and facts is not None:
            most, least = self.settings.disk_size, self.settings.least_tokens
            self.keeper = Keeper(self.url, self.routes, facts, shelf, most, least)
        elif shelf is not None:
            await asyncio.to_thread(shelf.close)
        self._facts, self.slots = facts, Slots(self.routes)

    async def place(self, request: ApiRequest) -> Placement | None:
        """Choose a slot for a request and get it ready; None where the server is to choose.

        The slot is locked until the placement is over or gone.
        """
        placed = await self._place(request)
        # What others do while it is under way may be in its slot before anybody looks.
        self.strangers += placed is None and self.active
        return placed

    async def _place(self, request: ApiRequest) -> Placement | None:
        only = request.body.get("id_slot")
        if not self.active or not placeable(request) or not (only is None or (type(only) is int and only >= 0)):
            return None
        if self.slots.clears and self.keeper is None:
            return None  # The server has a cache of its own for the slots that it clears, and asks it where it chooses.
        try:
            prompt = await self.routes.prompt(request)
            await self.refresh()
            found = await self.slots.lease(lambda free: self.plan(prompt, free), only, self.settings.wait)
        except KvproxyError as error:
            _log.debug("%s chooses the slot itself: %s", self.url, error.message)
            return None
        if found is None:
            return None
        view, plan = found
        placement = Placement(self, view, plan, prompt, request)
        try:
            if self.keeper is not None:
                if self.slots.clears:
                    await self._save_others(self.keeper)
                placement.restored = await self.keeper.prepare(view, plan)
        except BaseException:
            placement.gone()
            raise
        return placement

    async def refresh(self) -> None:
        """Learn what became of the slots, and of the server. Raises an UpstreamError where it does not tell."""
        if await self.slots.look():
            _log.info("%s was restarted: its slots are empty", self.url)
            await self.recognise()

    def plan(self, prompt: Tokens, free: list[View]) -> Plan | None:
        """Where a prompt would go if these slots were free."""
        saved = self.keeper.saved() if self.keeper else []
        held = [Held(view.slot, view.held, view.used) for view in free]
        return choose(prompt, held, saved, self.settings.least_tokens)

    def left(self, view: View) -> None:
        """Give back a slot whose request is over; it is saved when it stays idle."""
        self.slots.release(view)
        if self.keeper is not None and self.keeper.grown(view):
            self.spawn(self._save_idle(view, view.version))

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Do something in the background, until the proxy stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _save_idle(self, view: View, version: int) -> None:
        await asyncio.sleep(self.settings.save_after)
        if view.version == version and view.free and self.keeper is not None:
            await self.save(view, self.keeper)

    async def _save_others(self, keeper: Keeper) -> None:
        """Save slots that the server is about to clear."""
        for view in list(self.slots.views.values()):
            if view.free and keeper.works and keeper.unsaved(view) >= self.settings.least_tokens:
                await self.save(view, keeper)

    async def save(self, view: View, keeper: Keeper) -> str | None:
        """Save a free slot; the file's name, None where that failed."""
        view.take(saving=True)
        try:
            return await keeper.save(view)
        finally:
            self.slots.release(view)

    async def close(self) -> None:
        """Save what is not saved, and release the database."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.keeper is None:
            return
        keeper, self.keeper = self.keeper, None
        try:
            async with asyncio.timeout(_CLOSING):
                await self._save_others(keeper)
        except TimeoutError:
            _log.warning("%s: slots were not saved in %g s", self.url, _CLOSING)
        await asyncio.to_thread(keeper.shelf.close)


def placeable(request: ApiRequest) -> bool:
    """Whether a request uses one slot, and what that holds afterwards can be told."""
    body = request.body
    alone = body.get("n") in (None, 1) and body.get("lora") is None and body.get("cache_prompt") is not False
    return alone and request.api.name in ("chat", "completions", "messages", "responses")
