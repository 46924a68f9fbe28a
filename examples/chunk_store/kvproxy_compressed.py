"""Keeps compressed KV chunks in memory. The environment variable KVPROXY_COMPRESSED_BYTES is its size."""

import os
import zlib

from kvproxy.settings import TierSettings
from kvproxy.tiers.chunk_store import ChunkData
from kvproxy.tiers.local_stores import HostStore


class CompressedStore(HostStore):
    """`HostStore` has the order of eviction. Other stores implement all of `ChunkStore`."""

    name = "compressed"

    def get(self, key: str) -> ChunkData | None:
        data = super().get(key)
        return None if data is None else bytearray(zlib.decompress(data))

    def put(self, key: str, data: ChunkData) -> None:
        super().put(key, zlib.compress(data, 1))


def open_store(settings: TierSettings, pin_memory: object) -> CompressedStore:
    return CompressedStore(int(os.environ.get("KVPROXY_COMPRESSED_BYTES", 2**30)))
