"""Saves of several slots at the same time."""

import asyncio
from array import array
from pathlib import Path

from kvproxy.upstreams.llama.client import LlamaClient, ServerInfo, Tokens
from kvproxy.upstreams.llama.slot_files import SlotFiles, SlotSaver
from kvproxy.upstreams.llama.slots import Slot

BYTES_PER_TOKEN = 400


class FakeClient(LlamaClient):
    """A server that delays each save of an empty slot until `resume` is set."""

    def __init__(self, *slots: Tokens) -> None:
        self.contents = dict(enumerate(slots))
        self.files: dict[str, Tokens] = {}
        self.resume = asyncio.Event()
        self.overwriting = asyncio.Event()

    async def identity_and_properties(self) -> tuple[str | None, None]:
        return "one", None

    async def save_slot(self, slot: int, name: str) -> tuple[int, int]:
        tokens = self.contents[slot]
        if not tokens:
            self.overwriting.set()
            await self.resume.wait()
        self.files[name] = tokens
        return len(tokens), len(tokens) * BYTES_PER_TOKEN

    async def restore_slot(self, slot: int, name: str) -> int:
        self.contents[slot] = self.files[name]
        return len(self.files[name])

    async def erase_slot(self, slot: int) -> None:
        self.contents[slot] = array("i")


async def test_a_file_that_is_being_overwritten_is_not_given_to_another_slot(tmp_path: Path) -> None:
    long, one, two = array("i", range(100, 150)), array("i", range(20)), array("i", range(50, 70))
    client, files = FakeClient(one, two), SlotFiles(tmp_path / "slots.db", "http://llama")
    budget = 2 * len(one) * BYTES_PER_TOKEN
    saver = SlotSaver("http://llama", client, ServerInfo("one", 2, True, True, False), files, budget, 1)
    for name in [files.allocate_name("one") for _ in range(2)]:
        files.commit(name, "one", long, len(long), len(long) * BYTES_PER_TOKEN)
        files.discard(name)
    first = asyncio.create_task(saver.save(Slot(0, one, len(one))))
    await client.overwriting.wait()
    second = asyncio.create_task(saver.save(Slot(1, two, len(two))))
    for _ in range(20):
        await asyncio.sleep(0)
    client.resume.set()
    await asyncio.gather(first, second)
    assert sorted(file.tokens for file in files.list_restorable("one")) == [one, two]
    assert all(client.files[file.name] == file.tokens for file in files.list_restorable("one"))
    assert files.total_bytes <= budget
    assert client.contents == {0: one, 1: two}
    files.close()
