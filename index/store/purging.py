"""What the operator removed: entries that are marked as expired, and the list of such removals."""

from collections.abc import Callable, Sequence
from typing import Any

from kvproxy.index.store.listing import Purge, PurgeRequest
from kvproxy.index.store.sealing import Row, expiring
from kvproxy.index.store.transaction import Transaction

MOST_PURGES = 1_000
"""Removals that are remembered; the oldest go first."""
_PAGE = 500


def expire_now(
    run: Transaction, members: str, listed: Callable[[Sequence[str]], Any], columns: str, ids: Sequence[str], now: float
) -> int:
    """Let the time of entries end now, inside of a transaction; how many were within their time.

    Args:
        members: condition that a column `id` is in the list `:ids`.
        listed: a list as the database takes it.
        columns: of an entry.
    """
    chosen = f"select {columns} from responses where {members} and expires > :now"
    change = "update responses set expires = :expires, checksum = :checksum where id = :id"
    count = 0
    for start in range(0, len(ids), _PAGE):
        rows = run(chosen, {"ids": listed(ids[start : start + _PAGE]), "now": now})
        changed = [expiring(row, now) for row in rows]
        run.many(change, [{name: row[name] for name in ("id", "expires", "checksum")} for row in changed])
        count += len(rows)
    return count


def remember(run: Transaction, by: PurgeRequest | None, entries: int, now: float, *, soft: bool) -> None:
    """Add a removal to the list, in the transaction that does it."""
    if by is None:
        return
    values = {"time": now, "who": by.who, "what": by.what, "soft": int(soft), "entries": entries}
    run("insert into purges (time, who, what, soft, entries) values (:time, :who, :what, :soft, :entries)", values)
    run("delete from purges where number <= (select max(number) from purges) - :most", {"most": MOST_PURGES})


def purge_of(row: Row) -> Purge:
    """A removal as it is listed."""
    return Purge(float(row["time"]), row["who"], row["what"], bool(row["soft"]), int(row["entries"]))
