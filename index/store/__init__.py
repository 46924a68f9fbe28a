"""The response store: `protocol.py` is its seam, `sql_store.py` implements it for SQLite and PostgreSQL."""

from kvproxy.index.store.opening import open_store
from kvproxy.index.store.protocol import (
    EVERYTHING,
    Capacity,
    ClassifiedAnswer,
    EntryFilter,
    EvictionCandidate,
    NewEntry,
    Purge,
    PurgeRequest,
    RemovalReason,
    RemovedEntry,
    StorageUsage,
    Store,
    StoredQuestion,
    UsageKey,
    WriteResult,
)
from kvproxy.index.store.sqlite.store import SqliteStore

__all__ = [
    "EVERYTHING",
    "Capacity",
    "ClassifiedAnswer",
    "EntryFilter",
    "EvictionCandidate",
    "NewEntry",
    "Purge",
    "PurgeRequest",
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
