"""The response store; start with store.py."""

from kvproxy.index.store.opening import open_store
from kvproxy.index.store.sqlite.store import SqliteStore
from kvproxy.index.store.store import Store
from kvproxy.index.store.values import (
    EVERYTHING,
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
    "EVERYTHING",
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
