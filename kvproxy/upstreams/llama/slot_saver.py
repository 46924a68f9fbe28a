"""Saves slots to disk and restores them, within a size; and stops where a restore is not shown to have worked.

llama-server says that a restore went well also where it then computes everything again: models with sliding windows, without
`--swa-full`, need more than is in the file (llama.cpp #26676). So only the count of reused tokens in the next answer is believed.
"""

import logging

from kvproxy.errors import UpstreamError
from kvproxy.upstreams.llama.client import Facts, LlamaRoutes, SlotRefused
from kvproxy.upstreams.llama.packed_tokens import Tokens, count, shared
from kvproxy.upstreams.llama.slot_choice import Plan, computed_less
from kvproxy.upstreams.llama.slot_files import Saved, Shelf
from kvproxy.upstreams.llama.slots import View

TRIES = 3
"""Restores in a row that reused nothing, after which there are no more."""
_GROWN = 5
"""An idle slot is saved again when a fifth of it is new: so all that is written stays within five times what is kept."""
_EMPTY = 1024
"""Bytes below which a file is not worth writing over with an empty slot."""
_log = logging.getLogger(__name__)


class Keeper:
    """Keeps the prefixes of one server. Whoever calls has taken the slot.

    Args:
        routes: the server.
        facts: what it says of itself; it is asked again before anything is written or read, in case it is another one by now.
        shelf: what is saved.
        most: bytes that may be.
        least: fewest tokens that are worth it.

    Attributes:
        saves, restores, shown: how many there were, and how many restores showed in the answer after them.
        failed: restores in a row that did not.
    """

    def __init__(self, url: str, routes: LlamaRoutes, facts: Facts, shelf: Shelf, most: int, least: int) -> None:
        self.shelf = shelf
        self.identity = facts.identity
        self.saves = self.restores = self.shown = self.failed = 0
        self._url = url
        self._routes = routes
        self._most = most
        self._least = least

    @property
    def works(self) -> bool:
        """Whether restores are believed."""
        return self.failed < TRIES

    def saved(self) -> list[tuple[str, Tokens]]:
        """What can be restored."""
        return [(file.name, file.tokens or b"") for file in self.shelf.of(self.identity)] if self.works else []

    async def prepare(self, view: View, plan: Plan) -> Saved | None:
        """Save what a slot is about to lose, and restore what it is to hold; what was restored."""
        if not self.works:
            return None
        kept = 0 if plan.restore else plan.keeps
        if count(view.held) - kept >= self._least and self.unsaved(view) >= self._least:
            await self.save(view)
        file = self.shelf.get(plan.restore) if plan.restore else None
        return None if file is None else await self._restore(view, file)

    def unsaved(self, view: View) -> int:
        """Tokens of a slot that no file holds."""
        return count(view.held) - self.shelf.covered(self.identity, view.held)

    def grown(self, view: View) -> bool:
        """Whether an idle slot is worth a file."""
        return self.works and self.unsaved(view) >= max(self._least, count(view.held) // _GROWN)

    async def save(self, view: View) -> str | None:
        """Write a slot to a file; its name, None where that failed."""
        name = self.shelf.begin(self.identity)
        written = None
        try:
            if await self._same():
                written = await self._routes.save(view.slot, name)
        except UpstreamError as error:
            _log.warning("%s: slot %d could not be saved: %s", self._url, view.slot, error.message)
        finally:
            if written is None:
                self.shelf.drop(name)
        if written is None:
            return None
        self.saves += 1
        if written.tokens == view.tokens and written.size <= self._most:
            self.shelf.end(name, self.identity, view.held, written.tokens, written.size)
        else:
            # Somebody else used the slot a moment ago, or it alone is too large.
            self.shelf.drop(name, written.size)
        self.shelf.evict(self._most)
        await self._shrink(view, name)
        return name if name in dict(self.saved()) else None

    async def _restore(self, view: View, file: Saved) -> Saved | None:
        try:
            if not await self._same():
                return None
            view.held = b""
            written = await self._routes.restore(view.slot, file.name)
            view.tokens = written.tokens
            if written.tokens != file.held:
                # Another server's file under the same name: its keys and values may be of another model.
                await self._routes.erase(view.slot)
                raise SlotRefused(f"{file.name} holds {written.tokens} tokens, not {file.held}")
        except SlotRefused as error:
            _log.warning("%s: a saved slot is lost: %s", self._url, error.message)
            view.tokens = 0
            self.shelf.drop(file.name)
            return None
        except UpstreamError as error:
            _log.warning("%s: a slot was not restored: %s", self._url, error.message)
            return None
        view.held = file.tokens or b""
        self.restores += 1
        self.shelf.touch(file.name)
        return file

    def judge(self, file: Saved, prompt: Tokens, reused: int) -> None:
        """Compare what an answer says that it reused with what was restored for it."""
        if reused >= computed_less(shared(file.tokens or b"", prompt), prompt) // 2:
            self.shown += 1
            self.failed = 0
            return
        self.failed += 1
        if not self.works:
            _log.warning("%s: %s", self._url, self.trouble())

    def trouble(self) -> str | None:
        """Why nothing is restored any more; None where it is."""
        if self.works:
            return None
        return (
            f"slots do not come back from disk: {TRIES} restores in a row said ok and reused nothing, so no more are tried;"
            " start llama-server with --swa-full if the model has sliding windows"
        )

    async def _same(self) -> bool:
        """Whether the server is still the one that it was: another model's keys and values must never be restored."""
        return await self._routes.identity() == self.identity

    async def _shrink(self, view: View, name: str) -> None:
        """Write empty slots over files of no more use, until all of them together are small enough."""
        unused = [file for file in self.shelf.unused() if file.size > _EMPTY]
        if self.shelf.size <= self._most or not unused:
            return
        back = None
        try:
            await self._routes.erase(view.slot)
            for file in unused:
                if self.shelf.size > self._most and self.shelf.claim(file.name):
                    await self._empty(view, file)
            if name in dict(self.saved()):
                back = await self._routes.restore(view.slot, name)
        except UpstreamError as error:
            _log.warning("%s: saved slots of no more use still take room: %s", self._url, error.message)
        finally:
            if back is None:
                view.held, view.tokens = b"", 0

    async def _empty(self, view: View, file: Saved) -> None:
        """Write an empty slot over a file."""
        size = None
        try:
            size = (await self._routes.save(view.slot, file.name)).size
        finally:
            self.shelf.drop(file.name, size)
