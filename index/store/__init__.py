"""The response store; start with store.py."""

from kvproxy.index.store.open_store import open_store
from kvproxy.index.store.sqlite.store import SqliteStore
from kvproxy.index.store.store import Store
from kvproxy.index.store.store_types import (
    ALL_ENTRIES,
    Capacity,
    EntryFilter,
    EvictionCandidate,
    NewEntry,
    RemovalReason,
    RemovedEntry,
    StorageUsage,
    StoredQuestion,
    UsageKey,
    WriteResult,
)

__all__ = [
    "ALL_ENTRIES",
    "Capacity",
    "EntryFilter",
    "EvictionCandidate",
    "NewEntry",
    "RemovalReason",
    "RemovedEntry",
    "SqliteStore",
    "StorageUsage",
    "Store",
    "StoredQuestion",
    "UsageKey",
    "WriteResult",
    "open_store",
]
