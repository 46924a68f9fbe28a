"""Limits the total size of all request bodies in flight, so that large bodies do not exhaust the memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvproxy.errors import Overloaded, RequestTooLarge
from kvproxy.settings.limits import LimitSettings

FREE_BYTES = 64 * 1024
"""Bytes of each body that do not count, so that small requests are admitted even if large bodies use the whole budget."""
_SEPARATORS = (b",", b"{", b"[")


class BodyBudget:
    """Counts the bytes and JSON items of all request bodies in flight, and enforces their limits."""

    def __init__(self, limits: LimitSettings) -> None:
        self.limits = limits
        self.bytes = 0
        self.items = 0

    @contextmanager
    def reservation(self) -> Iterator["Reservation"]:
        """Yield a request's reservation; the end of the `with` block releases it."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.bytes -= reservation.bytes
            self.items -= reservation.items


class Reservation:
    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0
        self.bytes = 0
        self.items = 0

    def add_bytes(self, size: int) -> None:
        self._size += size
        more = max(0, self._size - FREE_BYTES) - self.bytes
        if more <= 0:
            return
        if self._budget.bytes + more > self._budget.limits.in_flight_bytes:
            raise _overloaded("in_flight_bytes", "the bodies of the requests in flight hold too many bytes")
        self.bytes += more
        self._budget.bytes += more

    def add_items(self, raw: bytes) -> None:
        """Count and reserve a body's JSON items before parsing, because a parsed item occupies about 250 bytes.

        Raises RequestTooLarge if the body has too many items, or Overloaded if all bodies in flight have too many.
        """
        limits = self._budget.limits
        # An upper bound: separators in texts count, too.
        items = sum(raw.count(separator) for separator in _SEPARATORS)
        if items > limits.items:
            raise RequestTooLarge(
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
