"""A reference model of a store: a dictionary with the rules of expiry and eviction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvproxy.index.entry import Entry, Freshness


@dataclass
class Kept:
    entry: Entry
    size: int
    worth: float
    hits: int = 0
    pinned: bool = False

    @property
    def priority(self) -> float:
        return 1e300 if self.pinned else self.worth


@dataclass
class NaiveStore:
    max_entries: int | None
    max_bytes: int | None
    shares: dict[str, int] = field(default_factory=dict)
    """Limits in bytes by tenant."""
    now: float = 1000.0
    age: float = 0.0
    kept: dict[str, Kept] = field(default_factory=dict)

    def _worth(self, entry: Entry, size: int, hits: int) -> float:
        return self.age + (hits + 1) * max(1, (entry.prompt_tokens or 0) + (entry.completion_tokens or 0)) / size

    def put(self, entries: Sequence[Entry], size: Callable[[Entry], int]) -> set[str]:
        """Returns the ids of removed entries."""
        before = self.ids() | {entry.id for entry in entries}
        for entry in entries:
            self._put(entry, size(entry))
        return before - self.ids()

    def _put(self, entry: Entry, size: int) -> None:
        replaced = self.kept.pop(entry.key, None)
        share = self.shares.get(entry.tenant)
        if size > (share or size) or size > (self.max_bytes or size):
            return
        while share is not None and sum(kept.size for kept in self._of(entry.tenant)) + size > share:
            worst = min(self._of(entry.tenant), key=lambda kept: (kept.priority, kept.entry.id))
            del self.kept[worst.entry.key]
        if self._is_full(size):
            self.expire()
        while self._is_full(size):
            worst = min(self.kept.values(), key=lambda kept: (kept.priority, kept.entry.id))
            self.age = self.age if worst.pinned else max(self.age, worst.priority)
            del self.kept[worst.entry.key]
        worth = self._worth(entry, size, 0)
        self.kept[entry.key] = Kept(entry, size, worth, pinned=replaced is not None and replaced.pinned)
        self.age += (worth - self.age) * 1e-9

    def ids(self) -> set[str]:
        return {kept.entry.id for kept in self.kept.values()}

    def _of(self, tenant: str) -> list[Kept]:
        return [kept for kept in self.kept.values() if kept.entry.tenant == tenant]

    def _is_full(self, size: int) -> bool:
        too_many = self.max_entries is not None and len(self.kept) >= self.max_entries
        total = sum(kept.size for kept in self.kept.values()) + size
        return too_many or (self.max_bytes is not None and total > self.max_bytes)

    def find(self, key: str) -> Entry | None:
        kept = self.kept.get(key)
        return kept.entry if kept is not None and self.freshness(kept.entry) != "expired" else None

    def freshness(self, entry: Entry) -> Freshness:
        """Entries of the future expire, because the clock was set back."""
        return entry.freshness(self.now) if entry.created <= self.now + 60 else "expired"

    def _until(self, entry: Entry) -> float:
        return entry.expires + max(entry.stale_while_revalidate, entry.stale_if_error)

    def expire_now(self, key: str) -> None:
        kept = self.kept[key]
        kept.entry = replace(kept.entry, expires=min(kept.entry.expires, self.now))

    def hit(self, key: str) -> None:
        kept = self.kept[key]
        kept.hits += 1
        kept.worth = self._worth(kept.entry, kept.size, kept.hits)

    def pin(self, key: str, pinned: bool) -> None:
        kept = self.kept[key]
        if kept.pinned and not pinned:
            kept.worth = self._worth(kept.entry, kept.size, kept.hits)
        kept.pinned = pinned

    def eviction_order(self) -> list[Kept]:
        is_servable = {id: self.now < self._until(kept.entry) for id, kept in self.kept.items()}
        return sorted(self.kept.values(), key=lambda kept: (is_servable[kept.entry.key], kept.priority, kept.entry.id))

    def remove(self, key: str) -> None:
        del self.kept[key]

    def expire(self) -> None:
        for kept in list(self.kept.values()):
            if self._until(kept.entry) <= self.now:
                self.remove(kept.entry.key)
