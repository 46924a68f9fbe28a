"""A tenant's share of a store: which of its own entries make room for one more of it."""

from collections.abc import Callable, Sequence

from kvproxy.index.store import eviction
from kvproxy.index.store.protocol import Capacity, Gone
from kvproxy.index.store.run import Run

_PAGE = 100


def share_of(capacity: Capacity, tenant: str) -> int | None:
    """Bytes that a tenant's entries may take; None where nothing bounds them."""
    return None if capacity.of_tenant is None else capacity.of_tenant(tenant)


def make_room(run: Run, remove: Callable[[Sequence[str]], list[Gone]], tenant: str, most: int, size: int) -> list[Gone]:
    """Remove a tenant's least useful entries until one more fits.

    Args:
        run: inside of the transaction that writes it.
        remove: takes ids.
        most: bytes that the tenant may have.
        size: of the entry that comes, not more than that.
    """
    gone: list[Gone] = []
    while True:
        sql = "select count(*) as entries, coalesce(sum(bytes), 0) as bytes from responses where tenant = :tenant"
        held = run(sql, {"tenant": tenant})[0]
        entries, total = int(held["entries"]) + 1, int(held["bytes"]) + size
        if total <= most:
            return gone
        sql = f"select id, bytes from responses where tenant = :tenant order by priority, id limit {_PAGE}"
        chosen = eviction.victims(Capacity(bytes=most), entries, total, run(sql, {"tenant": tenant}))
        gone += remove([row["id"] for row in chosen])
