"""Pins prefixes, which are then not evicted."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.row_types import PinRow


@dataclass(frozen=True, slots=True)
class PinnedChain:
    blocks: tuple[KVCacheBlock, ...]
    expires: float | None


class PinLimitExceeded(Exception):
    """The pins would hold too many blocks. `missing` is the number of blocks that the pool lacks."""

    def __init__(self, total: int, limit: int) -> None:
        super().__init__(f"pins would hold {total} blocks; the limit is {max(0, limit)}")
        self.missing = total - limit


class Pins:
    """Named pins: cached prefixes that are not evicted. The cache cannot be reset while a pin exists.

    Call `expire` before you allocate blocks or read statistics, because it removes the expired pins.
    """

    def __init__(
        self, manager: KVCacheManager, clock: Callable[[], float] = time.monotonic, *, max_blocks: int | None = None
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._max_blocks = max_blocks
        self._pins: dict[str, PinnedChain] = {}

    @property
    def pool_blocks(self) -> int:
        """Number of blocks of the pool, as `--num-blocks` sets it."""
        return len(self._manager.pool.blocks)

    def pin(self, name: str, request: CacheRequest, ttl: float | None = None) -> int:
        """Pin a prompt's cached prefix for `ttl` seconds, instead of an earlier pin with this name.

        Return the number of pinned tokens. If PinLimitExceeded is raised, the earlier pin remains.
        """
        computed = self._manager.get_computed_blocks(request)
        null = self._manager.pool.null_block
        blocks = tuple(block for group in computed.groups for block in group if block is not null)
        if not blocks:
            self.unpin(name)
            return 0
        others = {block.id for other, pin in self._pins.items() if other != name for block in pin.blocks}
        total = len(others | {block.id for block in blocks})
        if self._max_blocks is not None and total > self._max_blocks:
            raise PinLimitExceeded(total, self._max_blocks)
        # Touch the blocks before removing the old pin, which may share them.
        self._manager.pool.touch(blocks)
        self.unpin(name)
        self._pins[name] = PinnedChain(blocks, None if ttl is None else self._clock() + ttl)
        return computed.num_tokens

    def unpin(self, name: str) -> bool:
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        self._manager.pool.free_blocks(pin.blocks[::-1])
        return True

    def clear(self) -> None:
        for name in list(self._pins):
            self.unpin(name)

    def expire(self) -> int:
        now = self._clock()
        expired = [name for name, pin in self._pins.items() if pin.expires is not None and pin.expires <= now]
        for name in expired:
            self.unpin(name)
        return len(expired)

    def list(self) -> list[PinRow]:
        now = self._clock()
        return [
            PinRow(
                name,
                tuple(block.id for block in pin.blocks),
                None if pin.expires is None else max(0.0, pin.expires - now),
            )
            for name, pin in self._pins.items()
        ]
