"""The slots of one server, their locks, and the requests that wait for one."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvproxy.upstreams.llama.client import LlamaClient, SlotState
from kvproxy.upstreams.llama.packed_tokens import Tokens, count
from kvproxy.upstreams.llama.slot_choice import SlotChoice

_REFRESH_SECONDS = 0.5
"""Interval at which a waiting request checks for free slots."""


@dataclass(slots=True)
class Slot:
    """One slot of llama-server, with the KV cache of one sequence.

    Attributes:
        prefix: known tokens in the slot.
        task: number of its last request since the server's start.
        context: maximum number of tokens.
        locked: a request of this proxy or a save uses the slot, and only it may change the other attributes.
        busy: a request of another client uses the slot.
        version: number of changes, to detect outdated reports.
    """

    id: int
    prefix: Tokens = b""
    tokens: int = 0
    task: int | None = None
    context: int = 0
    used: float = 0.0
    locked: bool = False
    saving: bool = False
    busy: bool = False
    version: int = 0

    @property
    def is_free(self) -> bool:
        return not self.locked and not self.busy

    @property
    def is_known(self) -> bool:
        return count(self.prefix) == self.tokens

    def lock(self, *, saving: bool = False) -> None:
        self.locked, self.saving = True, saving
        self.version += 1

    def update(self, prefix: Tokens, state: SlotState) -> None:
        self.prefix = prefix
        self.tokens, self.task, self.context, self.busy = state.tokens, state.task, state.context, state.busy
        self.version += 1


@dataclass(frozen=True, slots=True)
class SlotsStatus:
    """Statistics of llama.cpp slots, for `kvproxy upstreams`.

    Attributes:
        saved: restorable files.
        saved_bytes: bytes of all files.
    """

    slots: int
    cached_tokens: int
    saved: int
    saved_bytes: int
    saves: int
    restores: int
    confirmed: int


class SlotTable:
    """All slots of one server.

    Attributes:
        clears_idle: the server was observed to clear idle slots.
    """

    def __init__(self, client: LlamaClient) -> None:
        self.slots: dict[int, Slot] = {}
        self.clears_idle = False
        self._client = client
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def lease(
        self, choose: Callable[[list[Slot]], SlotChoice | None], only: int | None, seconds: float
    ) -> tuple[Slot, SlotChoice] | None:
        """Lock the slot that `choose` returns. Raises UpstreamError.

        Args:
            only: the slot that the client requested.
            seconds: timeout, after which the result is None.
        """
        end = time.monotonic() + seconds
        while only is None or only in self.slots:
            usable = [slot for slot in self.slots.values() if only in (None, slot.id)]
            chosen = choose([slot for slot in usable if slot.is_free])
            best = choose([slot for slot in usable if slot.is_free or slot.saving])
            # A slot that is being saved may be worth the wait.
            if chosen is not None and best is not None and chosen.reused >= best.reused:
                slot = self.slots[chosen.slot]
                slot.lock()
                return slot, chosen
            left = end - time.monotonic()
            if left <= 0:
                return None
            await self._wait(min(left, _REFRESH_SECONDS))
            await self.refresh()
        return None

    async def _wait(self, seconds: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await asyncio.wait_for(turn, seconds)
        except TimeoutError:
            return
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def release(self, slot: Slot) -> None:
        slot.locked = slot.saving = False
        slot.used = time.monotonic()
        slot.version += 1
        self._wake_next()

    async def wait_until_saved(self, slot: Slot) -> None:
        while slot.saving:
            await self._wait(_REFRESH_SECONDS)
        self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break

    async def refresh(self) -> bool:
        """Update the slots from the server's report; return whether the server restarted."""
        versions = {slot.id: slot.version for slot in self.slots.values()}
        states = await self._client.slots()
        restarted = any(self._is_current(state, versions) and self._shows_restart(state) for state in states)
        for state in states:
            if state.slot not in self.slots:
                self.slots[state.slot] = Slot(state.slot)
                self.slots[state.slot].update(b"", state)
            elif self._is_current(state, versions):
                self._compare(self.slots[state.slot], state)
        return restarted

    def _is_current(self, state: SlotState, versions: dict[int, int]) -> bool:
        slot = self.slots.get(state.slot)
        return slot is not None and not slot.locked and slot.version == versions.get(state.slot)

    def _shows_restart(self, state: SlotState) -> bool:
        known = self.slots[state.slot].task
        return known is not None and (state.task is None or state.task < known)

    def _compare(self, slot: Slot, state: SlotState) -> None:
        if (state.task, state.tokens) == (slot.task, slot.tokens):
            slot.busy = state.busy
            return
        # A server with a unified KV buffer clears idle slots.
        self.clears_idle |= bool(slot.prefix) and state.task == slot.task and state.tokens == 0
        slot.update(b"", state)
