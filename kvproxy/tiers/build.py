"""The tiers that the settings ask for."""

from collections.abc import Callable

from kvproxy.encryption import Cipher
from kvproxy.errors import SettingsError
from kvproxy.settings import TierSettings
from kvproxy.tiers.chain import TierChain
from kvproxy.tiers.disk import DiskStore
from kvproxy.tiers.host import HostStore
from kvproxy.tiers.redis import RedisStore
from kvproxy.tiers.sealed import SealedStore
from kvproxy.tiers.store import ChunkStore, Data

_REDIS_VALUE = 512 << 20
_LEAST_PENDING = 64 << 20


def build_chain(
    settings: TierSettings,
    block_size: int,
    pin: Callable[[Data], Data] | None = None,
    *,
    token_bytes: int = 0,
    batch_tokens: int = 0,
    cipher: Cipher | None = None,
) -> TierChain | None:
    """Host, then disk, then Redis, as far as they are set; None where none is.

    Args:
        settings: which tiers, and how large.
        block_size: tokens in a block.
        pin: moves a buffer into page-locked memory, where the device is CUDA.
        token_bytes: keys and values of a token.
        batch_tokens: most tokens of a step.
        cipher: encrypts what leaves the process; None leaves chunks in clear.

    Raises:
        SettingsError: a chunk is not a whole number of blocks or larger than a tier, the folder cannot be used, or the URL is
            none.
    """
    if not settings.enabled:
        return None
    if settings.chunk_tokens % block_size:
        raise SettingsError(
            f"tiers.chunk_tokens {settings.chunk_tokens} is not a multiple of engine.block_size {block_size}:"
            f" use {max(1, settings.chunk_tokens // block_size) * block_size}",
            param="tiers.chunk_tokens",
        )
    _check_room(settings, settings.chunk_tokens * token_bytes)
    stores: list[ChunkStore] = []

    def outside(store: ChunkStore) -> ChunkStore:
        return store if cipher is None else SealedStore(store, cipher)

    if settings.host is not None:
        stores.append(HostStore(settings.host, pin) if pin else HostStore(settings.host))
    if settings.disk is not None:
        try:
            stores.append(outside(DiskStore(settings.disk, settings.disk_size)))
        except OSError as error:
            raise SettingsError(
                f"tiers.disk {settings.disk} cannot be used ({error.strerror}): name a folder that can be written to",
                param="tiers.disk",
            ) from None
    if settings.redis is not None:
        stores.append(outside(RedisStore(settings.redis, settings.redis_timeout, settings.redis_ttl)))
    return TierChain(stores, pending=_pending(settings.chunk_tokens * token_bytes, batch_tokens * token_bytes))


def _pending(chunk: int, step: int) -> int:
    """Most bytes on their way to the tiers: what two steps complete, so that one is written while the next is computed.

    With less, a long prompt loses chunks in the middle, and what lies behind a missing chunk is never looked for.
    """
    return max(_LEAST_PENDING, 2 * step, 2 * chunk)


def _check_room(settings: TierSettings, chunk: int) -> None:
    sizes: dict[str, int | None] = {
        "host": settings.host,
        "disk_size": settings.disk_size if settings.disk is not None else None,
        "redis": _REDIS_VALUE if settings.redis is not None else None,
    }
    for name, size in sizes.items():
        if size is not None and size < chunk:
            raise SettingsError(
                f"tiers.{name}: a chunk of {settings.chunk_tokens} tokens takes {chunk / 2**20:.1f} MiB, and there is room for"
                f" {size / 2**20:.1f}: lower tiers.chunk_tokens{'' if name == 'redis' else ', or raise it'}",
                param=f"tiers.{name}",
            )
