"""Checks of the tiers for `kvproxy doctor`. A check returns a description, or raises an error that contains the fix."""

import os
import shutil
from pathlib import Path

from kvproxy.errors import KvproxyError
from kvproxy.settings import TierSettings
from kvproxy.tiers.chunk_store import TierError
from kvproxy.tiers.free_memory import free_memory
from kvproxy.tiers.redis import RedisStore
from kvproxy.tiers.tier_chain import check_chunk_tokens

_GIB = 2**30


def check_chunks(chunk_tokens: int, block_size: int, hash_algorithm: str, *, is_persistent: bool) -> str:
    """Return the size of a chunk as a text for `doctor`.

    Raises a KvproxyError if the block size does not divide it, or if a restart changes the block hashes of a persistent tier.
    """
    check_chunk_tokens(chunk_tokens, block_size)
    if is_persistent and hash_algorithm.startswith("xxhash") and not os.environ.get("PYTHONHASHSEED"):
        raise KvproxyError(
            f"{hash_algorithm} uses a random seed, so a restart finds no chunks: set PYTHONHASHSEED, or use"
            " engine.hash_algorithm sha256_cbor"
        )
    return f"{chunk_tokens} tokens per chunk"


def check_host_memory(limit: int) -> str:
    free = free_memory()
    if limit > free:
        raise KvproxyError(
            f"{limit / _GIB:.1f} GiB are configured and {free / _GIB:.1f} GiB are free: lower --tier-host"
        )
    return f"up to {limit / _GIB:.1f} of {free / _GIB:.1f} GiB of free memory"


def check_disk(folder: Path, limit: int) -> str:
    """Check that the folder is private and writable, and that the disk has space for `limit` bytes."""
    sizes = [path.stat().st_size for path in folder.glob("*/*.chunk")] if folder.is_dir() else []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / ".doctor"
        probe.write_text("")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise KvproxyError(
            f"cannot write to {folder} ({error.strerror}): name another folder with --tier-disk"
        ) from None
    if folder.stat().st_mode & 0o077:
        raise KvproxyError(f"other users can read {folder}, which contains prompts: chmod 700 {folder}")
    used = sum(sizes)
    if limit - used > free:
        raise KvproxyError(
            f"{folder} may grow by {(limit - used) / _GIB:.1f} GiB and the disk has {free / _GIB:.1f} GiB: lower"
            " --tier-disk-size, or free disk space"
        )
    return f"{folder}, {used / _GIB:.1f} of {limit / _GIB:.1f} GiB, {len(sizes):,} chunks"


def check_redis(settings: TierSettings) -> str:
    """Check that the Redis server responds, and that it evicts chunks when it is full."""
    assert settings.redis is not None
    store = RedisStore(settings.redis, settings.redis_timeout)
    try:
        info, chunks = store.server_info(), sum(map(len, store.scan_names()))
    except TierError as error:
        raise KvproxyError(f"no answer ({error}): start Redis, or remove --tier-redis") from None
    finally:
        store.close()
    limit, policy = int(info.get("maxmemory") or 0), info.get("maxmemory_policy")
    if limit and policy == "noeviction":
        raise KvproxyError("Redis refuses chunks when it is full: set maxmemory-policy to allkeys-lru")
    room = f"maxmemory {limit / _GIB:.1f} GiB, {policy}" if limit else "no maxmemory: it grows until redis_ttl"
    return f"redis {info.get('redis_version')}, {room}, {chunks:,} chunks"
