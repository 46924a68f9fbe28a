"""What an answer is written in: its head and its body leave together, in order, and nothing is lost at the end."""

import asyncio
from collections.abc import Iterable

from kvproxy.http.connections.joined import JoinedWrites


class Calls(asyncio.Transport):
    """Notes the calls to the system, a list of bytes each."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []
        self.ended = ""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.calls.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:  # type: ignore[override]
        self.calls.append(b"".join(parts))

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def is_closing(self) -> bool:
        return bool(self.ended)

    def get_write_buffer_size(self) -> int:
        return 7


async def test_what_is_written_in_one_turn_leaves_by_one_call() -> None:
    system = Calls()
    joined = JoinedWrites(system)
    joined.write(b"head ")
    joined.write(b"body")
    assert system.calls == []
    assert joined.get_write_buffer_size() == 9 + 7
    await asyncio.sleep(0)
    joined.write(b"next")
    await asyncio.sleep(0)
    assert system.calls == [b"head body", b"next"]
    assert joined.get_write_buffer_size() == 7


async def test_much_does_not_wait_so_that_a_client_who_reads_nothing_is_noticed() -> None:
    system = Calls()
    joined = JoinedWrites(system)
    joined.write(b"head")
    joined.write(b"x" * 40_000)
    assert [len(call) for call in system.calls] == [40_004]
    joined.write(b"end")
    await asyncio.sleep(0)
    assert system.calls[1:] == [b"end"]


async def test_a_connection_that_is_closed_sends_what_was_written_and_one_that_is_aborted_does_not() -> None:
    for end, wanted in (("closed", [b"last words"]), ("aborted", [])):
        system = Calls()
        joined = JoinedWrites(system)
        joined.write(b"last words")
        joined.close() if end == "closed" else joined.abort()
        assert (system.calls, system.ended, joined.is_closing()) == (wanted, end, True)
        await asyncio.sleep(0)
        assert system.calls == wanted


async def test_nothing_is_written_to_a_connection_that_was_lost_meanwhile() -> None:
    system = Calls()
    joined = JoinedWrites(system)
    joined.write(b"too late")
    system.ended = "lost"
    await asyncio.sleep(0)
    assert system.calls == []
