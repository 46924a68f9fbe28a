"""What a store lists: which entries are meant, whose they are, which go next, and what the operator removed."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from kvproxy.index.entry import Entry


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries; what is None does not matter.

    Attributes:
        namespace, key: the digest, or the beginning of it.
        model, tag: exact name.
        tenant: as listings show it, or the name of a client.
        prompt: what the prompt begins with.
        search: text that the prompt contains, whatever its case.
        older_than: seconds of age.
    """

    namespace: str | None = None
    key: str | None = None
    model: str | None = None
    tag: str | None = None
    prompt: str | None = None
    search: str | None = None
    older_than: float | None = None
    tenant: str | None = None

    def said(self, *, texts: bool = True) -> str:
        """It in a line, as the list of purges keeps it.

        Args:
            texts: with the words that prompts are to hold; else it says only that some were given.
        """
        given = [(each.name, getattr(self, each.name)) for each in fields(self)]
        hidden = () if texts else ("prompt", "search")
        told = [f"{name}={'(words)' if name in hidden else value}" for name, value in given if value is not None]
        return ", ".join(told) or "all"


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """Who removes entries, and which, in the words of a list of such removals."""

    who: str
    what: str


@dataclass(frozen=True, slots=True)
class Purge:
    """A removal by the operator.

    Attributes:
        time: seconds since the epoch.
        who, what: see `PurgeRequest`.
        soft: the entries were marked as expired.
        entries: how many.
    """

    time: float
    who: str
    what: str
    soft: bool
    entries: int


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """An entry in the order in which entries go if the store is full.

    Attributes:
        why: `expired`: its time is over; `saves least`: it is expected to save the fewest tokens a byte of all; `pinned`: all
            others go before it.
        priority: what it is worth keeping, see `eviction`.
        bytes: that it is counted with.
    """

    entry: Entry
    why: Literal["expired", "saves least", "pinned"]
    priority: float
    bytes: int

    def summary(self) -> dict[str, Any]:
        """What a listing shows, JSON-able."""
        return self.entry.summary() | {"why": self.why, "priority": self.priority, "bytes": self.bytes}


EVERYTHING = EntryFilter()
UsageKey = Literal["tenant", "model", "endpoint", "tag"]


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """What some entries have in common, and how many they are; hits and the bytes of request, response and vector in sum."""

    name: str
    entries: int
    bytes: int
    hits: int
