import threading
from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from kvproxy.exchange import Exchange
from kvproxy.journal.cache_history import ResponseRemoved, ResponseStored

Event: TypeAlias = Exchange | ResponseStored | ResponseRemoved
MAX_EXCHANGES = 20_000
_MAX_BYTES = 64 * 2**20


class EventQueue:
    """A bounded, thread-safe queue of events for the journal's thread to write."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._exchanges = 0
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, exchange: Exchange) -> bool:
        size = _body_bytes(exchange)
        with self._lock:
            if self._exchanges >= MAX_EXCHANGES or self._bytes + size > _MAX_BYTES:
                return False
            self._events.append(exchange)
            self._exchanges += 1
            self._bytes += size
        return True

    def put_changes(self, changes: Iterable[ResponseStored | ResponseRemoved]) -> None:
        """Add changes of the response store, even if the queue is full."""
        with self._lock:
            self._events.extend(changes)

    def take(self, limit: int) -> list[Event]:
        with self._lock:
            events = [self._events.popleft() for _ in range(min(limit, len(self._events)))]
            exchanges = [each for each in events if isinstance(each, Exchange)]
            self._exchanges -= len(exchanges)
            self._bytes -= sum(map(_body_bytes, exchanges))
        return events


def _body_bytes(exchange: Exchange) -> int:
    return 0 if exchange.request is None else len(exchange.request.raw)
