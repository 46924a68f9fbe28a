"""Values of listings: filters, purges, the eviction order, and usage."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from kvproxy.index.entry import Entry


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Conditions on entries; None matches all.

    Attributes:
        namespace, key: a prefix of the digest.
        model, tag: the exact name.
        tenant: as in listings, or the name of a client.
        prompt: a prefix of the prompt.
        search: a text in the prompt, ignoring case.
        older_than: age in seconds.
    """

    namespace: str | None = None
    key: str | None = None
    model: str | None = None
    tag: str | None = None
    prompt: str | None = None
    search: str | None = None
    older_than: float | None = None
    tenant: str | None = None

    def description(self, *, texts: bool = True) -> str:
        """Return one line for the list of purges.

        Args:
            texts: include the words of `prompt` and `search`.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        hidden = () if texts else ("prompt", "search")
        parts = [f"{name}={'(words)' if name in hidden else v}" for name, v in values.items() if v is not None]
        return ", ".join(parts) or "all"


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """Who removes which entries, as recorded in the list of purges."""

    who: str
    what: str


@dataclass(frozen=True, slots=True)
class Purge:
    """A removal by an operator.

    Attributes:
        time: seconds since the epoch.
        soft: the entries were expired, not removed.
        entries: their number.
    """

    time: float
    who: str
    what: str
    soft: bool
    entries: int


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """An entry in the order in which a full store removes entries.

    Attributes:
        why: `saves least` is the eviction by priority.
        priority: see `eviction`.
        bytes: see `NewEntry.size`.
    """

    entry: Entry
    why: Literal["expired", "saves least", "pinned"]
    priority: float
    bytes: int

    def summary(self) -> dict[str, Any]:
        """Return the JSON object of listings."""
        return self.entry.summary() | {"why": self.why, "priority": self.priority, "bytes": self.bytes}


EVERYTHING = EntryFilter()
UsageKey = Literal["tenant", "model", "endpoint", "tag"]


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """Number, bytes, and hits of the entries with one tenant, model, endpoint, or tag."""

    name: str
    entries: int
    bytes: int
    hits: int
