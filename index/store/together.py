"""Which of several puts may be written at once: those that stand in nobody's way, so that the order makes no difference."""

from collections import Counter
from collections.abc import Callable, Sequence

from kvproxy.index.store import eviction
from kvproxy.index.store.protocol import Capacity, NewEntry
from kvproxy.index.store.tenant_usage import owned_by, owner_of, share_of
from kvproxy.index.store.transaction import Transaction


def parts(
    run: Transaction,
    capacity: Capacity,
    puts: Sequence[NewEntry],
    text: Callable[[str], str],
    replaces: Callable[[], Sequence[bool]],
) -> list[list[NewEntry]]:
    """The puts, in their order, in parts that may be put at once.

    Args:
        run: inside of the transaction that writes them.
        text: a tenant as the database has it.
        replaces: whether each takes the place of a stored entry; asked where others must go to make room.
    """
    alone = [[put] for put in puts]
    if len(puts) < 2 or len({put.embedder for put in puts if put.vector is not None}) > 1:
        return alone
    if len({put.entry.id for put in puts}) + len({put.entry.key for put in puts}) < 2 * len(puts):
        return alone
    sizes: Counter[str] = Counter()
    for put in puts:
        sizes[owner_of(put.entry.tenant)] += eviction.put_bytes(put)
    for tenant, size in sizes.items():
        share = share_of(capacity, tenant)
        if share is not None and owned_by(run, text(tenant)).bytes + size > share:
            return alone
    totals = run("select entries, bytes from totals", {})[0]
    if not eviction.excess(capacity, totals["entries"] + len(puts), totals["bytes"] + sizes.total()):
        return [list(puts)]
    replacing = replaces()
    found = [alone[0]]
    for place in range(1, len(puts)):
        if replacing[place] or replacing[place - 1]:
            found.append(alone[place])
        else:
            found[-1].append(puts[place])
    return found
