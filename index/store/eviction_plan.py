"""Makes room in a full store for several entries at once, as if each had come alone: a later one may push out an earlier one."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvproxy.index.entry import Entry
from kvproxy.index.store import eviction
from kvproxy.index.store.protocol import Capacity, RemovalReason, RemovedEntry
from kvproxy.index.store.transaction import Transaction

_PAGE = 16
_Place = tuple[float, str, int]
"""Priority, id and bytes of an entry: the least is the next to go."""


@dataclass(frozen=True, slots=True)
class Comer:
    """An entry that is to be stored.

    Attributes:
        size: bytes that it is counted with, no more than the store may have.
        pinned: whether it takes the place of a pinned one.
    """

    entry: Entry
    size: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class Room:
    """What came of it.

    Attributes:
        gone: stored entries that were removed, and comers that are not stored, since later ones pushed them out.
        priorities: of the comers that are to be stored, by id.
    """

    gone: list[RemovedEntry]
    priorities: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of what is stored; see `eviction` for the age."""

    entries: int
    bytes: int
    age: float


@dataclass(frozen=True, slots=True)
class _Choice:
    """Who goes: ids of stored entries; priorities of the comers that stay, by id; the age of the store then."""

    evicted: list[str]
    priorities: dict[str, float]
    age: float


def make_room(
    run: Transaction,
    remove: Callable[[Sequence[str], RemovalReason], list[RemovedEntry]],
    expired: Callable[[], list[str]],
    capacity: Capacity,
    comers: Sequence[Comer],
) -> Room:
    """Remove what has expired, where that is needed, and then the least useful entries.

    Args:
        run: inside of the transaction that writes the comers.
        remove: takes ids.
        expired: ids of entries that are past their time, some at a time.
        comers: in their order.
    """
    gone, together = list[RemovedEntry](), sum(comer.size for comer in comers)
    while True:
        sums = _sums(run)
        short = eviction.excess(capacity, sums.entries + len(comers), sums.bytes + together)
        if not short or not (ids := expired()):
            break
        gone += remove(ids, "expired")
    chosen = _choose(_least(run, len(comers) + _PAGE) if short else iter(()), sums, capacity, comers)
    gone += remove(chosen.evicted, "evicted")
    if chosen.age != sums.age:
        run("update totals set age = :age", {"age": chosen.age})
    pushed = [comer.entry for comer in comers if comer.entry.id not in chosen.priorities]
    gone += [RemovedEntry(entry.id, entry.namespace, (), entry.key, "evicted") for entry in pushed]
    return Room(gone, chosen.priorities)


def _sums(run: Transaction) -> _Sums:
    totals = run("select entries, bytes, age from totals", {})[0]
    return _Sums(int(totals["entries"]), int(totals["bytes"]), float(totals["age"]))


def _choose(least: Iterator[_Place], sums: _Sums, capacity: Capacity, comers: Sequence[Comer]) -> _Choice:
    """Who goes, as if the comers came one after the other: each pushes out the least of all that is there by then.

    Args:
        least: what is stored, the next to go first.
    """
    entries, size, age = sums.entries, sums.bytes, sums.age
    stored, evicted = next(least, None), list[str]()
    new: list[_Place] = []
    priorities: dict[str, float] = {}
    for comer in comers:
        while eviction.excess(capacity, entries + 1, size + comer.size):
            if stored is not None and not (new and new[0] < stored):
                victim, stored = stored, next(least, None)
                evicted.append(victim[1])
            elif new:
                victim = heapq.heappop(new)
                del priorities[victim[1]]
            else:
                break  # The sums tell of more than there is: the file was damaged.
            entries, size = entries - 1, size - victim[2]
            age = victim[0] if victim[0] < eviction.PINNED else age
        entries, size = entries + 1, size + comer.size
        priority = eviction.PINNED if comer.pinned else eviction.priority(comer.entry, comer.size, age)
        priorities[comer.entry.id] = priority
        heapq.heappush(new, (priority, comer.entry.id, comer.size))
    return _Choice(evicted, priorities, age)


def _least(run: Transaction, page: int) -> Iterator[_Place]:
    """What is stored, the next to go first."""
    sql = "select id, bytes, priority from responses order by priority, id limit :page offset :offset"
    offset = 0
    while rows := run(sql, {"page": page, "offset": offset}):
        yield from ((row["priority"], row["id"], row["bytes"]) for row in rows)
        offset += len(rows)
