"""What `kvproxy doctor` looks at in each tier. Each check returns what it found, or raises an error that names the fix."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from kvproxy.errors import KvproxyError
from kvproxy.settings import TierSettings
from kvproxy.tiers.free_memory import free_memory
from kvproxy.tiers.redis import RedisStore
from kvproxy.tiers.store import TierError

_GIB = 2**30


def check_chunks(chunk_tokens: int, block_size: int, hash_algorithm: str, *, outlives: bool) -> str:
    """Whether chunks are whole blocks, and are found again by a restart where a tier outlives the process."""
    if chunk_tokens % block_size:
        fitting = max(1, chunk_tokens // block_size) * block_size
        raise KvproxyError(
            f"chunks of {chunk_tokens} tokens are no whole blocks of {block_size}: use tiers.chunk_tokens {fitting}"
        )
    if outlives and hash_algorithm.startswith("xxhash") and not os.environ.get("PYTHONHASHSEED"):
        raise KvproxyError(
            f"{hash_algorithm} names blocks anew in each process, so a restart finds nothing: set PYTHONHASHSEED, or use"
            " engine.hash_algorithm sha256_cbor"
        )
    return f"{chunk_tokens} tokens a chunk"


def check_host(limit: int) -> str:
    """Whether the machine has the memory."""
    free = free_memory()
    if limit > free:
        raise KvproxyError(
            f"{limit / _GIB:.1f} GiB are asked for and {free / _GIB:.1f} GiB of memory are free: lower --tier-host"
        )
    return f"up to {limit / _GIB:.1f} of {free / _GIB:.1f} GiB of free memory"


def check_disk(folder: Path, limit: int, own: str | None) -> str:
    """Whether the folder can be written to, has the room, and whose chunks it holds.

    Args:
        folder: the tier's.
        limit: most bytes of it.
        own: how the keys of the model's own chunks begin; None where that is not known.
    """
    found = {path.stem: path.stat().st_size for path in folder.glob("*/*.chunk")} if folder.is_dir() else {}
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
        raise KvproxyError(f"others can look into {folder}, and chunks hold the tokens of prompts: chmod 700 {folder}")
    used = sum(found.values())
    if limit - used > free:
        raise KvproxyError(
            f"{folder} may grow by {(limit - used) / _GIB:.1f} GiB and has {free / _GIB:.1f} GiB left: lower"
            " --tier-disk-size, or make room"
        )
    return f"{folder}, {used / _GIB:.1f} of {limit / _GIB:.1f} GiB, {_whose(found, own)}"


def check_redis(settings: TierSettings, own: str | None) -> str:
    """Whether the server answers, what it does when it is full, and whose chunks it holds."""
    assert settings.redis is not None
    store = RedisStore(settings.redis, settings.redis_timeout)
    try:
        facts, keys = store.server(), store.keys()
    except TierError as error:
        raise KvproxyError(f"no answer ({error}): start Redis, or leave --tier-redis out") from None
    finally:
        store.close()
    limit, policy = int(facts.get("maxmemory") or 0), facts.get("maxmemory_policy")
    if limit and policy == "noeviction":
        raise KvproxyError("a full Redis refuses chunks: set its maxmemory-policy to allkeys-lru")
    room = f"maxmemory {limit / _GIB:.1f} GiB, {policy}" if limit else "no maxmemory: it grows until redis_ttl"
    return f"redis {facts.get('redis_version')}, {room}, {_whose(keys, own)}"


def _whose(keys: Iterable[str], own: str | None) -> str:
    names = list(keys)
    if own is None or not names:
        return f"{len(names):,} chunks"
    others = sum(not name.startswith(own) for name in names)
    if others == len(names):
        return f"{others:,} chunks, none of this model (or its weights, dtype, block size or hashing changed)"
    return f"{len(names):,} chunks, {others:,} of other models"
