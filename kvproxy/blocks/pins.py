"""Chains that must not be evicted: a pin holds the cached blocks of a prompt, for a time or until it is taken back."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kvproxy.blocks.block import Block
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.rows import PinRow


@dataclass(frozen=True, slots=True)
class Pin:
    """Held blocks, and when the pin ends by itself (seconds of the clock), if ever."""

    blocks: tuple[Block, ...]
    expires: float | None


class PinsFull(Exception):
    """A pin would leave too few blocks for requests; the message tells how many there may be."""


class Pins:
    """Pins by name over a manager. A pinned block counts as used, and a reset is refused while there is one.

    Args:
        manager: the block cache; the caller calls `expire` when blocks run short, and before it reads figures.
        max_blocks: most blocks that all pins may hold, None for no limit.
        clock: seconds, ever growing.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_blocks: int | None = None,
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._max_blocks = max_blocks
        self._pins: dict[str, Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def pin(self, name: str, request: CacheRequest, ttl: float | None = None) -> int:
        """Hold what is cached of a prompt now, in place of an older pin of the name.

        Args:
            name: to take the pin back by.
            request: the prompt; it stays outside the manager.
            ttl: seconds to hold it for; None until `unpin`.

        Returns:
            Tokens held; 0, and no pin, where nothing is cached.

        Raises:
            PinsFull: all pins together would hold more than `max_blocks`; the older pin of the name stays.
        """
        found = self._manager.get_computed_blocks(request)
        null = self._manager.pool.null_block
        blocks = tuple(block for group in found.groups for block in group if block is not null)
        if not blocks:
            self.unpin(name)
            return 0
        self._check_room(name, blocks)
        # Held before the old pin ends, so that blocks which both hold are never idle in between.
        self._manager.pool.touch(blocks)
        self.unpin(name)
        self._pins[name] = Pin(blocks, None if ttl is None else self._clock() + ttl)
        return found.num_tokens

    def _check_room(self, name: str, blocks: tuple[Block, ...]) -> None:
        others = {block.id for other, pin in self._pins.items() if other != name for block in pin.blocks}
        total = len(others | {block.id for block in blocks})
        if self._max_blocks is not None and total > self._max_blocks:
            raise PinsFull(f"pins would hold {total} blocks where they may hold {self._max_blocks}")

    def unpin(self, name: str) -> bool:
        """Let a pin's blocks go, last first; whether there was such a pin."""
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        self._manager.pool.release(pin.blocks[::-1])
        return True

    def clear(self) -> None:
        """End all pins."""
        for name in list(self._pins):
            self.unpin(name)

    def expire(self) -> int:
        """End the pins whose time is over; how many there were."""
        now = self._clock()
        over = [name for name, pin in self._pins.items() if pin.expires is not None and pin.expires <= now]
        for name in over:
            self.unpin(name)
        return len(over)

    def list(self) -> list[PinRow]:
        """All pins, the oldest first."""
        now = self._clock()
        return [
            PinRow(
                name,
                tuple(block.id for block in pin.blocks),
                None if pin.expires is None else max(0.0, pin.expires - now),
            )
            for name, pin in self._pins.items()
        ]

    def held(self) -> Counter[int]:
        """Holders of each block id, for `check_integrity`."""
        return Counter(block.id for pin in self._pins.values() for block in pin.blocks)
