"""Files of one server that several slots are saved to at once."""

import asyncio
from pathlib import Path

from kvproxy.upstreams.llama.client import Facts, LlamaRoutes, Written
from kvproxy.upstreams.llama.packed_tokens import Tokens, pack
from kvproxy.upstreams.llama.slot_files import Shelf
from kvproxy.upstreams.llama.slot_saver import Keeper
from kvproxy.upstreams.llama.slots import View

BYTES = 100


class Routes(LlamaRoutes):
    """A server that empties no file before it is told to."""

    def __init__(self, *slots: Tokens) -> None:
        self.slots_hold = dict(enumerate(slots))
        self.files: dict[str, Tokens] = {}
        self.may_empty = asyncio.Event()
        self.emptying = asyncio.Event()

    async def identity(self) -> str | None:
        return "one"

    async def save(self, slot: int, name: str) -> Written:
        held = self.slots_hold[slot]
        if not held:
            self.emptying.set()
            await self.may_empty.wait()
        self.files[name] = held
        return Written(len(held) // 4, len(held) * BYTES)

    async def restore(self, slot: int, name: str) -> Written:
        self.slots_hold[slot] = self.files[name]
        return Written(len(self.files[name]) // 4, 0)

    async def erase(self, slot: int) -> None:
        self.slots_hold[slot] = b""


def test_a_file_that_is_being_emptied_is_given_to_no_other_slot(tmp_path: Path) -> None:
    """An empty slot was written over what another one had just saved, and its prefix was forgotten."""
    long, one, two = pack(range(100, 150)), pack(range(20)), pack(range(50, 70))

    async def save() -> None:
        routes = Routes(one, two)
        shelf = Shelf(tmp_path / "slots.db", "http://llama")
        size = len(one) * BYTES
        keeper = Keeper("http://llama", routes, Facts("one", 2, True, True, False), shelf, 2 * size, 1)
        unused = [shelf.begin("one") for _ in range(2)]
        for name in unused:
            shelf.end(name, "one", long, 50, len(long) * BYTES)
            shelf.drop(name)
        views = [View(0, one, len(one) // 4), View(1, two, len(two) // 4)]
        first = asyncio.create_task(keeper.save(views[0]))
        await routes.emptying.wait()
        second = asyncio.create_task(keeper.save(views[1]))
        for _ in range(20):
            await asyncio.sleep(0)
        routes.may_empty.set()
        names = [await first, await second]
        assert [shelf.get(name or "").tokens for name in names] == [one, two]  # type: ignore[union-attr]
        assert [routes.files[name or ""] for name in names] == [one, two]
        assert shelf.size <= 2 * size
        assert routes.slots_hold == {0: one, 1: two}
        shelf.close()

    asyncio.run(save())
