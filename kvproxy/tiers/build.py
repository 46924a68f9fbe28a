from collections.abc import Callable

from kvproxy.encryption import Cipher
from kvproxy.errors import SettingsError
from kvproxy.settings import TierSettings
from kvproxy.tiers.chunk_store import ChunkData, ChunkStore
from kvproxy.tiers.disk import DiskStore
from kvproxy.tiers.host_memory import HostStore
from kvproxy.tiers.redis import RedisStore
from kvproxy.tiers.tier_chain import TierChain

_MAX_REDIS_VALUE = 512 << 20
_MIN_PENDING_BYTES = 64 << 20


def build_chain(
    settings: TierSettings,
    block_size: int,
    pin_memory: Callable[[ChunkData], ChunkData] | None = None,
    *,
    token_bytes: int = 0,
    batch_tokens: int = 0,
    cipher: Cipher | None = None,
) -> TierChain | None:
    """Create the configured tiers; None if no tier is configured.

    Args:
        pin_memory: copies a buffer to page-locked memory.
        token_bytes: size of a token's keys and values.
        batch_tokens: maximum number of tokens in a step of the engine. The chunks of two steps may wait to be
            written.
    """
    if not settings.enabled:
        return None
    check_chunk_tokens(settings.chunk_tokens, block_size)
    _check_chunk_fits(settings, settings.chunk_tokens * token_bytes)
    stores: list[ChunkStore] = []
    if settings.host is not None:
        stores.append(HostStore(settings.host, pin_memory))
    if settings.disk is not None:
        try:
            stores.append(DiskStore(settings.disk, settings.disk_size))
        except OSError as error:
            raise SettingsError(
                f"cannot use tiers.disk {settings.disk} ({error.strerror}): name a writable folder",
                param="tiers.disk",
            ) from None
    if settings.redis is not None:
        stores.append(RedisStore(settings.redis, settings.redis_timeout, settings.redis_ttl))
    # One step is written while the next is computed. With less, long prompts lose chunks in the middle.
    max_pending_bytes = max(_MIN_PENDING_BYTES, 2 * token_bytes * max(batch_tokens, settings.chunk_tokens))
    return TierChain(stores, max_pending_bytes, cipher)


def check_chunk_tokens(chunk_tokens: int, block_size: int) -> None:
    if chunk_tokens % block_size:
        raise SettingsError(
            f"tiers.chunk_tokens {chunk_tokens} is not a multiple of engine.block_size {block_size}:"
            f" use {max(1, chunk_tokens // block_size) * block_size}",
            param="tiers.chunk_tokens",
        )


def _check_chunk_fits(settings: TierSettings, chunk_bytes: int) -> None:
    sizes: dict[str, int | None] = {
        "host": settings.host,
        "disk_size": settings.disk_size if settings.disk is not None else None,
        "redis": _MAX_REDIS_VALUE if settings.redis is not None else None,
    }
    for name, size in sizes.items():
        if size is not None and size < chunk_bytes:
            raise SettingsError(
                f"tiers.{name}: a chunk of {settings.chunk_tokens} tokens has {chunk_bytes / 2**20:.1f} MiB, the limit is"
                f" {size / 2**20:.1f} MiB: lower tiers.chunk_tokens{'' if name == 'redis' else ', or raise the limit'}",
                param=f"tiers.{name}",
            )
