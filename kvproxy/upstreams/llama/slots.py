"""The slots of one llama-server, and the choice among them."""

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.upstreams.llama.client import LlamaClient, SlotState, Tokens

_REFRESH_INTERVAL_SECONDS = 0.5
MAX_SLOTS = 1_024
"""Slots of a server; further ones are not used. llama-server has at most 256."""


@dataclass(slots=True)
class Slot:
    """One slot of llama-server, with the KV cache of one sequence."""

    id: int
    prefix: Tokens = field(
        default_factory=lambda: array("i")
    )  # The known tokens at the beginning of the slot's tokens.
    tokens: int = 0  # Number of all tokens.
    task: int | None = None  # The server's id of the slot's last request.
    context: int = 0  # Maximum number of tokens.
    used: float = 0.0  # Time of the last release, by the monotonic clock.
    locked: bool = False  # A request of this proxy, or a save, uses the slot.
    saving: bool = False  # A save uses the slot.
    busy: bool = False  # The server processes a request in the slot.
    version: int = 0  # Number of changes. A state that was requested before the last change is ignored.

    @property
    def is_free(self) -> bool:
        return not self.locked and not self.busy

    @property
    def has_known_tokens(self) -> bool:
        return len(self.prefix) == self.tokens

    def lock(self, *, saving: bool = False) -> None:
        self.locked, self.saving = True, saving
        self.version += 1

    def update(self, prefix: Tokens, state: SlotState) -> None:
        self.prefix = prefix
        self.tokens, self.task, self.context, self.busy = state.tokens, state.task, state.context, state.busy
        self.version += 1


@dataclass(frozen=True, slots=True)
class SlotChoice:
    slot: int
    kept: int  # Length of the common prefix of the prompt and the slot's tokens.
    restore: str | None  # Name of the file to restore into the slot first, if any.
    reused: int  # Number of prompt tokens that need no computation, after the restore if any.


def choose_slot(
    prompt: Tokens, free_slots: Sequence[Slot], files: Sequence[tuple[str, Tokens]], min_tokens: int
) -> SlotChoice | None:
    """Choose the slot or file that has the longest common prefix with the prompt; None without a free slot.

    Prefixes of less than `min_tokens` are ignored, because a chat template begins all prompts with the same tokens.
    """
    if not free_slots:
        return None
    common = {slot.id: common_prefix_length(slot.prefix, prompt) for slot in free_slots}
    oldest = min(free_slots, key=lambda slot: (bool(slot.prefix), slot.used, slot.id))
    best = min(free_slots, key=lambda slot: (-common[slot.id], len(slot.prefix), slot.used, slot.id))
    matches = ((name, common_prefix_length(tokens, prompt)) for name, tokens in files)
    name, restored = max(matches, key=lambda match: match[1], default=("", 0))
    if restored >= common[best.id] + min_tokens:
        return SlotChoice(oldest.id, common[oldest.id], name, reusable_tokens(restored, prompt))
    chosen = best if common[best.id] >= min_tokens else oldest
    return SlotChoice(chosen.id, common[chosen.id], None, reusable_tokens(common[chosen.id], prompt))


def reusable_tokens(common_tokens: int, prompt: Tokens) -> int:
    """Return how many tokens of a common prefix of slot and prompt are reused: at most all except the prompt's last one."""
    return max(0, min(common_tokens, len(prompt) - 1))


class SlotTable:
    """All slots of one server. `clears_idle_slots` is true once the server has cleared a slot that no request used."""

    def __init__(self, client: LlamaClient) -> None:
        self.slots: dict[int, Slot] = {}
        self.clears_idle_slots = False
        self._client = client
        self._released = asyncio.Event()

    async def lease(
        self, choose: Callable[[list[Slot]], SlotChoice | None], required_id: int | None, seconds: float
    ) -> tuple[Slot, SlotChoice] | None:
        """Wait for a free slot, and lock the one that `choose` selects; None after the timeout. Raises UpstreamError.

        If `required_id` is not None, only this slot is used.
        """
        end = time.monotonic() + seconds
        while required_id is None or required_id in self.slots:
            usable = [slot for slot in self.slots.values() if required_id in (None, slot.id)]
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
            await self._wait(min(left, _REFRESH_INTERVAL_SECONDS))
            await self.refresh()
        return None

    async def _wait(self, seconds: float) -> None:
        self._released.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._released.wait()

    def release(self, slot: Slot) -> None:
        slot.locked = slot.saving = False
        slot.used = time.monotonic()
        slot.version += 1
        self._released.set()

    async def wait_until_saved(self, slot: Slot) -> None:
        while slot.saving:
            await self._wait(_REFRESH_INTERVAL_SECONDS)

    async def refresh(self) -> bool:
        """Read the slots' state from the server; return whether the server restarted."""
        versions = {slot.id: slot.version for slot in self.slots.values()}
        restarted = False
        for state in await self._client.slots():
            slot = self.slots.get(state.slot)
            if slot is None:
                if len(self.slots) >= MAX_SLOTS:
                    continue
                slot = self.slots[state.slot] = Slot(state.slot)
                slot.update(array("i"), state)
            elif not slot.locked and slot.version == versions.get(state.slot):
                restarted |= slot.task is not None and (state.task is None or state.task < slot.task)
                if (state.task, state.tokens) == (slot.task, slot.tokens):
                    slot.busy = state.busy
                    continue
                # A server with a unified KV buffer clears idle slots.
                self.clears_idle_slots |= bool(slot.prefix) and state.task == slot.task and state.tokens == 0
                slot.update(array("i"), state)
        return restarted
