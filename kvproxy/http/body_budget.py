"""A budget for the bodies of all requests in flight, so that large bodies neither block other requests nor exhaust the memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvproxy.errors import Overloaded, TooLarge
from kvproxy.settings.limits import LimitSettings

FREE_BYTES = 64 * 1024
"""Bytes of each body that need no budget, so that small requests are served while large ones wait for their bodies."""
_SEPARATORS = (b",", b"{", b"[")


class BodyBudget:
    """The bytes and JSON items that all requests in flight may hold.

    Args:
        limits: `items` for one body; `in_flight_bytes` and `in_flight_items` for all of them.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self.limits = limits
        self.bytes = 0
        self.items = 0

    @contextmanager
    def reservation(self) -> Iterator["Reservation"]:
        """The share of one request. It is released when the block ends."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.bytes -= reservation.bytes
            self.items -= reservation.items


class Reservation:
    """The share of one request in the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0
        self.bytes = 0
        self.items = 0

    def add_bytes(self, size: int) -> None:
        """Reserve bytes as they arrive; raises Overloaded."""
        self._size += size
        more = max(0, self._size - FREE_BYTES) - self.bytes
        if more <= 0:
            return
        if self._budget.bytes + more > self._budget.limits.in_flight_bytes:
            raise _overloaded("in_flight_bytes", "the bodies of the requests in flight hold too many bytes")
        self.bytes += more
        self._budget.bytes += more

    def add_items(self, raw: bytes) -> None:
        """Reserve the items of a body before it is parsed. A parser blocks all other requests, and an item takes some 250 bytes.

        Raises:
            TooLarge: it has more items than one body may have.
            Overloaded: the requests in flight have too many.
        """
        limits = self._budget.limits
        # An upper bound: separators inside of texts count, too.
        items = sum(raw.count(separator) for separator in _SEPARATORS)
        if items > limits.items:
            raise TooLarge(
                f"the body has more than {limits.items:,} items (commas, braces, and brackets):"
                " send fewer, or raise the setting limits.items",
                limit="items",
            )
        if self._budget.items + items > limits.in_flight_items:
            raise _overloaded("in_flight_items", "the bodies of the requests in flight hold too many items")
        self.items += items
        self._budget.items += items


def _overloaded(limit: str, why: str) -> Overloaded:
    return Overloaded(f"{why}: try again, or raise the setting limits.{limit}", limit=limit, retry_after=1.0)
