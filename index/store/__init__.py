"""Stored responses: `protocol` says what a store does, `sqlite` and `postgres` do it, `sql` is what they share."""

from kvproxy.index.store.filters import EVERYTHING, Filter, Purge, PurgedBy, Queued, Usage, UsageBy
from kvproxy.index.store.opening import open_store
from kvproxy.index.store.protocol import (
    Answer,
    Capacity,
    Gone,
    Head,
    Put,
    Store,
    Why,
    Written,
)
from kvproxy.index.store.sqlite.store import ResponseStore

__all__ = [
    "EVERYTHING",
    "Answer",
    "Capacity",
    "Filter",
    "Gone",
    "Head",
    "Purge",
    "PurgedBy",
    "Put",
    "Queued",
    "ResponseStore",
    "Store",
    "Usage",
    "UsageBy",
    "Why",
    "Written",
    "open_store",
]
