"""Evicts the entries that save the fewest tokens per byte, by GreedyDual-Size-Frequency (Cherkasova 1998).

The priority of an entry is computed when it is stored, and after each hit:

    age + (hits + 1) * tokens / bytes

`tokens` is the sum of prompt and answer tokens, which a hit saves, or 1 if they are unknown. `age` is the priority of the last
evicted entry. It rises with every eviction, so old entries without hits have lower priorities than new ones. It also rises
by a billionth of `tokens / bytes` of each stored entry, so of equal entries the oldest one is evicted first.

The tenants `CLIENT` and `CLIENT/USER` share the limit of the client.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvproxy.index.store.database import Row, Transaction
from kvproxy.index.store.rows import SERVABLE_UNTIL
from kvproxy.index.store.store_types import Capacity, NewEntry, RemovalReason

PINNED = 1e300
_AGE_STEP = 1e-9
# After `:count` new hits. The product may exceed 64 bits.
_PRIORITY = (
    "(select age from totals) + 1.0 * (hits + :count + 1)"
    " * (case when prompt_tokens > 0 or completion_tokens > 0"
    " then case when prompt_tokens > 0 then prompt_tokens else 0 end"
    " + case when completion_tokens > 0 then completion_tokens else 0 end else 1 end)"
    " / bytes"
)
PRIORITY_AFTER_HITS = f"case when priority >= :pinned then priority else {_PRIORITY} end"
PIN = "update responses set priority = :pinned where id = :id"
UNPIN = f"update responses set priority = {_PRIORITY} where id = :id and priority >= :pinned"
_CANDIDATES = "select id, bytes, priority from responses{} order by priority, id limit :limit"
_MAX_CANDIDATES = 16
_MAX_EXPIRED = 2_000  # Expired entries per transaction.
MAX_EVICTED = 1_000
"""Entries that a write evicts at most. A store reaches a lowered limit with the next writes."""
Remove = Callable[[Sequence[str], RemovalReason], None]
WriteHits = Callable[[Transaction], None]


def fits(capacity: Capacity, new: NewEntry) -> bool:
    """Return whether an entry would fit into the empty store."""
    limit = _tenant_limit(capacity, new)
    return not _is_over_capacity(capacity, 1, new.size) and (limit is None or new.size <= limit)


def make_room(
    run: Transaction, remove: Remove, write_hits: WriteHits, capacity: Capacity, new: NewEntry, now: float
) -> None:
    """Evict entries with `remove` until a new entry fits, or `MAX_EVICTED` are evicted.

    `write_hits` writes the counts of hits before entries are chosen.
    """
    if (limit := _tenant_limit(capacity, new)) is not None:
        _evict_from_tenant(run, remove, write_hits, _client_of(new), limit, new.size)
    evicted = 0
    while (capacity.entries is not None or capacity.bytes is not None) and evicted < MAX_EVICTED:
        totals = run("select entries, bytes from totals")[0]
        entries, total = int(totals["entries"]) + 1, int(totals["bytes"]) + new.size
        if not _is_over_capacity(capacity, entries, total):
            return
        if expired := expired_ids(run, now):
            remove(expired, "expired")
            evicted += len(expired)
            continue
        write_hits(run)
        candidates = run(_CANDIDATES.format(""), {"limit": _MAX_CANDIDATES})
        victims = _choose_victims(candidates, capacity, entries, total)
        if not victims:
            return  # The totals in the database are damaged.
        remove([row["id"] for row in victims], "evicted")
        evicted += len(victims)
        if unpinned := [row["priority"] for row in victims if row["priority"] < PINNED]:
            run("update totals set age = :age where age < :age", {"age": max(unpinned)})


def advance_age(run: Transaction, new: NewEntry) -> None:
    run("update totals set age = age + :step", {"step": _AGE_STEP * tokens_per_byte(new)})


def tokens_per_byte(new: NewEntry) -> float:
    """Return the part of an entry's priority that does not depend on `age`."""
    entry = new.entry
    return max(1, (entry.prompt_tokens or 0) + (entry.completion_tokens or 0)) * (entry.hits + 1) / new.size


def expired_ids(run: Transaction, now: float) -> list[str]:
    sql = f"select id from responses where {SERVABLE_UNTIL} <= :now limit :limit"
    return [row["id"] for row in run(sql, {"now": now, "limit": _MAX_EXPIRED})]


def _evict_from_tenant(
    run: Transaction, remove: Remove, write_hits: WriteHits, client: str, limit: int, entry_bytes: int
) -> None:
    of_client = "select tenant, bytes from tenants where tenant = :client or substr(tenant, 1, :length) = :prefix"
    while True:
        tenants = run(of_client, {"client": client, "prefix": f"{client}/", "length": len(client) + 1})
        total = sum(int(row["bytes"]) for row in tenants) + entry_bytes
        if total <= limit:
            return
        write_hits(run)
        # With names in the statement, the database reads candidates in the order of the index.
        names: dict[str, Any] = {f"tenant{place}": row["tenant"] for place, row in enumerate(tenants)}
        where = f" where tenant in ({', '.join(f':{name}' for name in names)})"
        candidates = run(_CANDIDATES.format(where), names | {"limit": _MAX_CANDIDATES})
        victims = _choose_victims(candidates, Capacity(bytes=limit), 0, total)
        remove([row["id"] for row in victims], "evicted")


def _choose_victims(candidates: Iterable[Row], capacity: Capacity, num_entries: int, total_bytes: int) -> list[Row]:
    victims: list[Row] = []
    for row in candidates:
        if not _is_over_capacity(capacity, num_entries, total_bytes):
            break
        victims.append(row)
        num_entries, total_bytes = num_entries - 1, total_bytes - row["bytes"]
    return victims


def _is_over_capacity(capacity: Capacity, num_entries: int, total_bytes: int) -> bool:
    too_many = capacity.entries is not None and num_entries > capacity.entries
    return too_many or (capacity.bytes is not None and total_bytes > capacity.bytes)


def _tenant_limit(capacity: Capacity, new: NewEntry) -> int | None:
    return None if capacity.tenant_limit is None else capacity.tenant_limit(_client_of(new))


def _client_of(new: NewEntry) -> str:
    return new.entry.tenant.partition("/")[0]
