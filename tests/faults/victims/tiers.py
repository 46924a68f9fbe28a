"""The tier on disk: chunks one after the other, every other time into a folder that is too small for them."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from kvproxy.tiers.codec import ChunkName, header_bytes, read_payload, write_header
from kvproxy.tiers.disk import DiskStore
from tests.faults.victims.victim import READY, Tell

_PAYLOAD = 200_000
_SMALL, _LARGE = 3_000_000, 1 << 40


class Tiers:
    """Tells `NUMBER` of a chunk that is put away."""

    name = "disk tier"
    lives = 4
    longest = 0.08

    def prepare(self, folder: Path, seed: int) -> None:
        if seed % 2:
            (folder / "limited").touch()

    def _open(self, folder: Path) -> DiskStore:
        return DiskStore(folder / "chunks", _SMALL if (folder / "limited").exists() else _LARGE)

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        store = self._open(folder)
        tell(READY)
        for number in count(1000 * seed):
            name = name_of(number)
            buffer = bytearray(header_bytes(name)) + bytes([number % 256]) * _PAYLOAD
            write_header(memoryview(buffer), name)
            store.put(name.key, buffer)
            tell(str(number))

    def check(self, folder: Path, told: Sequence[str]) -> None:
        store, limited = self._open(folder), (folder / "limited").exists()
        found = 0
        for number in map(int, told):
            data = store.get(name_of(number).key)
            assert data is not None or limited, f"chunk {number} is lost"
            if data is not None:
                found += 1
                assert read_payload(data, name_of(number)) == bytes([number % 256]) * _PAYLOAD, (
                    f"chunk {number} is torn"
                )
        on_disk = sum(path.stat().st_size for path in (folder / "chunks").rglob("*.chunk"))
        assert store.stats().bytes == on_disk
        assert not limited or on_disk <= _SMALL
        # At most the last chunk of each life was put away and not told of.
        assert found <= store.stats().chunks <= found + self.lives
        assert not list((folder / "chunks").glob("*.part")), "an unfinished chunk stays behind"


def name_of(number: int) -> ChunkName:
    """The name of a chunk of these tests."""
    return ChunkName(b"f" * 32, number.to_bytes(32, "big"), [number % 1000, 1])
