"""An owner's share of a store: which of its own entries are evicted for one more of it.

The tenants `NAME` and `NAME/PART` have the owner `NAME`, and share what it may store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.index.store import eviction
from kvproxy.index.store.protocol import Capacity, RemovedEntry
from kvproxy.index.store.sealing import Row
from kvproxy.index.store.transaction import Transaction

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Owned:
    """What a tenant has: entries, and their bytes."""

    entries: int = 0
    bytes: int = 0


def owner_of(tenant: str) -> str:
    """The owner of a tenant's entries."""
    return tenant.partition("/")[0]


def owned_by(run: Transaction, owner: str) -> Owned:
    """The entries and bytes of an owner."""
    found = _tenants(run, owner)
    return Owned(sum(int(row["entries"]) for row in found), sum(int(row["bytes"]) for row in found))


def _tenants(run: Transaction, owner: str) -> list[Row]:
    sql = "select tenant, entries, bytes from tenants where tenant = :owner or substr(tenant, 1, :length) = :prefix"
    return run(sql, {"owner": owner, "prefix": f"{owner}/", "length": len(owner) + 1})


def share_of(capacity: Capacity, tenant: str) -> int | None:
    """Bytes that the entries of a tenant's owner may take; None without a bound."""
    return None if capacity.of_tenant is None else capacity.of_tenant(owner_of(tenant))


def make_room_of(
    run: Transaction, remove: Callable[[Sequence[str]], list[RemovedEntry]], tenant: str, most: int, size: int
) -> list[RemovedEntry]:
    """Remove the least useful entries of a tenant's owner until one more fits.

    Args:
        run: inside of the transaction that writes it.
        remove: takes ids.
        most: bytes that the owner may have.
        size: of the entry that comes, not more than that.
    """
    gone: list[RemovedEntry] = []
    while True:
        owned = owned_by(run, owner_of(tenant))
        entries, total = owned.entries + 1, owned.bytes + size
        if total <= most:
            return gone
        names = {f"tenant{place}": row["tenant"] for place, row in enumerate(_tenants(run, owner_of(tenant)))}
        places = ", ".join(f":{name}" for name in names)
        sql = f"select id, bytes from responses where tenant in ({places}) order by priority, id limit {_PAGE}"
        chosen = eviction.victims(Capacity(bytes=most), entries, total, run(sql, names))
        gone += remove([row["id"] for row in chosen])
