"""A reference model of a store: a dictionary with the rules of expiry and eviction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvproxy.index.entry import Entry


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
        return self.age + (hits + 1) * max(1, entry.prompt_tokens + entry.completion_tokens) / size

    def put(self, entries: Sequence[Entry], size: Callable[[Entry], int]) -> set[str]:
        """Returns the ids of removed entries."""
        removed: set[str] = set()
        while entries:
            count = next(n for n in range(len(entries), 0, -1) if n == 1 or self._holds(entries[:n], size))
            removed |= self._put_batch(entries[:count], size)
            entries = entries[count:]
        return removed

    def _holds(self, batch: Sequence[Entry], size: Callable[[Entry], int]) -> bool:
        fits = all(
            sum(size(entry) for entry in batch if entry.tenant == tenant) <= share
            for tenant, share in self.shares.items()
        )
        total = sum(map(size, batch))
        is_small = (self.max_entries or len(batch)) >= len(batch) and (self.max_bytes or total) >= total
        return fits and is_small and len({entry.key for entry in batch}) == len(batch)

    def _put_batch(self, batch: Sequence[Entry], size: Callable[[Entry], int]) -> set[str]:
        before = self.ids() | {entry.id for entry in batch}
        pinned = {entry.key for entry in batch if entry.key in self.kept and self.kept[entry.key].pinned}
        for entry in batch:
            self.kept.pop(entry.key, None)
        batch = [entry for entry in batch if self._holds([entry], size)]
        for tenant, share in self.shares.items():
            added = sum(size(entry) for entry in batch if entry.tenant == tenant)
            while added and sum(kept.size for kept in self._of(tenant)) + added > share:
                worst = min(self._of(tenant), key=lambda kept: (kept.priority, kept.entry.id))
                del self.kept[worst.entry.key]
        added = sum(map(size, batch))
        if batch and self._full(len(batch), added):
            self.expire()
        while batch and self._full(len(batch), added):
            worst = min(self.kept.values(), key=lambda kept: (kept.priority, kept.entry.id))
            self.age = self.age if worst.pinned else worst.priority
            del self.kept[worst.entry.key]
        for entry in batch:
            worth = self._worth(entry, size(entry), 0)
            self.kept[entry.key] = Kept(entry, size(entry), worth, pinned=entry.key in pinned)
        return before - self.ids()

    def ids(self) -> set[str]:
        return {kept.entry.id for kept in self.kept.values()}

    def _of(self, tenant: str) -> list[Kept]:
        return [kept for kept in self.kept.values() if kept.entry.tenant == tenant]

    def _full(self, count: int, size: int) -> bool:
        entries, total = len(self.kept) + count, sum(kept.size for kept in self.kept.values()) + size
        too_many = self.max_entries is not None and entries > self.max_entries
        return too_many or (self.max_bytes is not None and total > self.max_bytes)

    def find(self, key: str) -> Entry | None:
        kept = self.kept.get(key)
        return kept.entry if kept is not None and self.now < self._until(kept.entry) else None

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
