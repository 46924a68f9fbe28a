"""Which entry goes first when a store is full: the one that is expected to save the fewest tokens a byte.

GreedyDual-Size-Frequency (Cherkasova 1998), as used by web caches. An entry's priority is

    age + (hits + 1) * tokens / bytes

`tokens` are those of prompt and answer, what one hit saves. `age` is the priority of the last entry that was evicted, taken when
the entry is stored or served: what is not served again falls behind what comes later, so that recency counts without a clock.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from kvproxy.index.entry import Entry
from kvproxy.index.store.protocol import Capacity, NewEntry

PINNED = 1e300
"""The priority of an entry that is pinned: no other comes near it, so all others go first."""
# The same formula over the columns of the table, where `:count` hits are new.
_PRIORITY = (
    "(select age from totals) + (hits + :count + 1)"
    " * (case when prompt_tokens + completion_tokens > 0 then prompt_tokens + completion_tokens else 1 end)"
    " * 1.0 / bytes"
)
# A hit takes no pin away.
PRIORITY_AFTER_HITS = f"case when priority >= :pinned then priority else {_PRIORITY} end"
PIN = "update responses set priority = :pinned where id = :id"
UNPIN = f"update responses set priority = {_PRIORITY} where id = :id and priority >= :pinned"


def entry_bytes(entry: Entry, dim: int) -> int:
    """Bytes that an entry is counted with: request, response, prompt and a float32 vector of `dim` values."""
    return len(entry.request) + len(entry.response) + len(entry.prompt.encode()) + 4 * dim + 1


def put_bytes(put: NewEntry) -> int:
    """`entry_bytes` of what is put."""
    return entry_bytes(put.entry, 0 if put.vector is None else len(put.vector))


def priority(entry: Entry, size: int, age: float) -> float:
    """What an entry is worth keeping; the least goes first."""
    return age + (entry.hits + 1) * max(1, entry.prompt_tokens + entry.completion_tokens) / size


def pinned_keys(rows: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The keys of those rows that are pinned: an answer that takes their place, as a renewed one does, keeps the pin."""
    return frozenset(row["key"] for row in rows if row["priority"] >= PINNED)


def room_for(capacity: Capacity, size: int) -> bool:
    """Whether an entry can be kept at all."""
    return (capacity.bytes is None or size <= capacity.bytes) and (capacity.entries is None or capacity.entries > 0)


def excess(capacity: Capacity, entries: int, size: int) -> bool:
    """Whether so many entries of so many bytes are too many."""
    too_many = capacity.entries is not None and entries > capacity.entries
    return too_many or (capacity.bytes is not None and size > capacity.bytes)


def victims(
    capacity: Capacity, entries: int, size: int, candidates: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """As many of the candidates, the least valuable first, as must go until nothing is in excess."""
    chosen: list[Mapping[str, Any]] = []
    for row in candidates:
        if not excess(capacity, entries, size):
            break
        chosen.append(row)
        entries, size = entries - 1, size - row["bytes"]
    return chosen
