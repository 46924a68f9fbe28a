"""How fresh an entry is, in SQL that every kind of database reads alike."""

SKEW = 60.0
"""Seconds that clocks of proxies on one store may differ."""
# What was stored in the future was stored before the clock was set back: it would outlive its time by as much.
_COUNTS = "created <= :soon"
KEPT_UNTIL = (
    "expires + case when stale_while_revalidate > stale_if_error then stale_while_revalidate else stale_if_error end"
)
"""When an entry's time is over, and its stale times too. An index is made of this very expression."""
KEPT = f"{KEPT_UNTIL} > :now and {_COUNTS}"
"""Condition that an entry is within its time, or within one of its stale times."""
FRESHNESS = (
    f"case when not ({_COUNTS}) then 'over' when expires > :now then 'fresh'"
    " when expires + stale_while_revalidate > :now then 'stale-while-revalidate'"
    " when expires + stale_if_error > :now then 'stale-if-error' else 'over' end"
)
"""An entry's freshness, see `entry.Freshness`."""
