"""A tenant's share of a store: which of its own entries make room for one more of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.index.store import eviction
from kvproxy.index.store.protocol import Capacity, Gone
from kvproxy.index.store.run import Run

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Owned:
    """What a tenant has: entries, and their bytes."""

    entries: int = 0
    bytes: int = 0


def owned_by(run: Run, tenant: str) -> Owned:
    """What a tenant has, at the cost of one row."""
    rows = run("select entries, bytes from tenants where tenant = :tenant", {"tenant": tenant})
    return Owned(int(rows[0]["entries"]), int(rows[0]["bytes"])) if rows else Owned()


def share_of(capacity: Capacity, tenant: str) -> int | None:
    """Bytes that a tenant's entries may take; None where nothing bounds them."""
    return None if capacity.of_tenant is None else capacity.of_tenant(tenant)


def make_room_of(
    run: Run, remove: Callable[[Sequence[str]], list[Gone]], tenant: str, most: int, size: int
) -> list[Gone]:
    """Remove a tenant's least useful entries until one more fits.

    Args:
        run: inside of the transaction that writes it.
        remove: takes ids.
        most: bytes that the tenant may have.
        size: of the entry that comes, not more than that.
    """
    gone: list[Gone] = []
    while True:
        owned = owned_by(run, tenant)
        entries, total = owned.entries + 1, owned.bytes + size
        if total <= most:
            return gone
        sql = f"select id, bytes from responses where tenant = :tenant order by priority, id limit {_PAGE}"
        chosen = eviction.victims(Capacity(bytes=most), entries, total, run(sql, {"tenant": tenant}))
        gone += remove([row["id"] for row in chosen])
