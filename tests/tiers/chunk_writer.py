"""Writes chunks until it is killed: `python -m tests.tiers.chunk_writer FOLDER`."""

import sys
from pathlib import Path

from kvproxy.tiers.chunk_format import ChunkName, payload_offset, write_header
from kvproxy.tiers.local_stores import DiskStore

PAYLOAD = 300_000


def name_of(number: int) -> ChunkName:
    return ChunkName(b"f" * 32, number.to_bytes(32, "big"), [number, number + 1])


def main(folder: Path) -> None:
    store = DiskStore(folder, 1 << 30)
    for number in range(10_000):
        name = name_of(number)
        buffer = bytearray(payload_offset(name)) + bytes([number % 256]) * PAYLOAD
        write_header(memoryview(buffer), name)
        store.put(name.key, buffer)
        print(number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
