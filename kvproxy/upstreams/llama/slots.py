"""All slots of one server: which are free, who waits for one, and what the server itself tells of them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvproxy.upstreams.llama.client import LlamaRoutes, SlotState
from kvproxy.upstreams.llama.packed_tokens import Tokens, count
from kvproxy.upstreams.llama.slot_choice import Plan


@dataclass(slots=True)
class View:
    """One slot.

    Attributes:
        slot: its number.
        held: the tokens that it begins with, as far as they are known.
        tokens: how many it holds.
        task: number of its last request since the server's start.
        context: how many tokens it can hold.
        used: when it was last used.
        taken: whether a request of ours uses it, or it is being saved: the slot's lock. Who takes it alone may change the rest.
        saving: whether it is taken for no longer than a file takes to be written.
        busy: whether somebody else's request uses it.
        version: grows with each change, so that what was asked before a change is not believed after it.
    """

    slot: int
    held: Tokens = b""
    tokens: int = 0
    task: int | None = None
    context: int = 0
    used: float = 0.0
    taken: bool = False
    saving: bool = False
    busy: bool = False
    version: int = 0

    @property
    def free(self) -> bool:
        """Whether a request may have it."""
        return not self.taken and not self.busy

    @property
    def known(self) -> bool:
        """Whether all that it holds is known."""
        return count(self.held) == self.tokens

    def take(self, *, saving: bool = False) -> None:
        """Lock it."""
        self.taken, self.saving = True, saving
        self.version += 1

    def learn(self, held: Tokens, state: SlotState) -> None:
        """Note what it holds now."""
        self.held = held
        self.tokens, self.task, self.context, self.busy = state.tokens, state.task, state.context, state.busy
        self.version += 1


@dataclass(frozen=True, slots=True)
class SlotsStatus:
    """What `kvproxy upstreams` shows of llama.cpp's slots.

    Attributes:
        slots: how many there are.
        tokens: what they hold together.
        saved, saved_bytes: files on disk that can be restored, and the bytes of all files.
        saves, restores, shown: how many there were, and how many restores showed in the answer after them.
    """

    slots: int
    tokens: int
    saved: int
    saved_bytes: int
    saves: int
    restores: int
    shown: int


_LOOK = 0.5
"""Seconds after which one that waits for a slot looks whether somebody else has left one."""


class Slots:
    """The slots of one server.

    Args:
        routes: the server.

    Attributes:
        views: what is known of each slot.
        clears: whether the server was seen to empty idle slots.
    """

    def __init__(self, routes: LlamaRoutes) -> None:
        self.views: dict[int, View] = {}
        self.clears = False
        self._routes = routes
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def lease(
        self, plan: Callable[[list[View]], Plan | None], only: int | None, seconds: float
    ) -> tuple[View, Plan] | None:
        """Lock a slot; None where all stay in use for too long. Raises an UpstreamError where the server does not tell.

        Args:
            plan: chooses among free slots.
            only: the one slot that will do.
            seconds: how long to wait for a slot.
        """
        end = time.monotonic() + seconds
        while only is None or only in self.views:
            usable = [view for view in self.views.values() if only in (None, view.slot)]
            chosen = plan([view for view in usable if view.free])
            best = plan([view for view in usable if view.free or view.saving])
            # What is being saved is free in a moment, and may be worth the wait.
            if chosen is not None and best is not None and chosen.reused >= best.reused:
                view = self.views[chosen.slot]
                view.take()
                return view, chosen
            left = end - time.monotonic()
            if left <= 0:
                return None
            await self._wait(min(left, _LOOK))
            await self.look()
        return None

    async def _wait(self, seconds: float) -> None:
        """Wait for a slot to be given back, first come first served."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await asyncio.wait_for(turn, seconds)
        except TimeoutError:
            return
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def release(self, view: View) -> None:
        """Give a slot back."""
        view.taken = view.saving = False
        view.used = time.monotonic()
        view.version += 1
        self._wake()

    async def settled(self, view: View) -> None:
        """Wait until a slot is not being saved."""
        while view.saving:
            await self._wait(_LOOK)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break

    async def look(self) -> bool:
        """Compare what is known with what the server tells, for others may use it too; whether it was restarted."""
        before = {view.slot: view.version for view in self.views.values()}
        states = await self._routes.slots()
        restarted = any(self._fresh(state, before) and self._before(state) for state in states)
        for state in states:
            if state.slot not in self.views:
                self.views[state.slot] = View(state.slot)
                self.views[state.slot].learn(b"", state)
            elif self._fresh(state, before):
                self._compare(self.views[state.slot], state)
        return restarted

    def _fresh(self, state: SlotState, before: dict[int, int]) -> bool:
        """Whether nothing has become of a slot since the server was asked."""
        view = self.views.get(state.slot)
        return view is not None and not view.taken and view.version == before.get(state.slot)

    def _before(self, state: SlotState) -> bool:
        """Whether a server tells less than it did: its requests are counted from its start on."""
        known = self.views[state.slot].task
        return known is not None and (state.task is None or state.task < known)

    def _compare(self, view: View, state: SlotState) -> None:
        if (state.task, state.tokens) == (view.task, view.tokens):
            view.busy = state.busy
            return
        # A server whose slots share their room empties those that are idle.
        self.clears |= bool(view.held) and state.task == view.task and state.tokens == 0
        view.learn(b"", state)
