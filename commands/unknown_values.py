"""Names the known values of a filter whose value matches nothing."""

import difflib
from typing import TYPE_CHECKING, Any

from kvproxy.units import tenant_name

if TYPE_CHECKING:
    from kvproxy.index.store.store_types import UsageKey
    from kvproxy.operations.open_cache import CacheClient

_SUGGESTED = 10
_FILTERS: "tuple[UsageKey, ...]" = ("model", "tag", "tenant")


def unknown_value(subject: str, kind: str, value: str, known: set[str]) -> str:
    """Return a sentence about a value that no subject has, with known values, similar ones first."""
    similar = difflib.get_close_matches(value, known, n=_SUGGESTED)
    others = [] if similar and len(known) > _SUGGESTED else sorted(known.difference(similar))
    listed = [*similar, *others][:_SUGGESTED]
    more = len(known) - len(listed)
    names = f": there are {', '.join(listed)}{f', and {more:,} more' if more else ''}"
    return f"no {subject} has the {kind} {value!r}{names if listed else ''}"


def no_stored_response(cache: "CacheClient", filters: dict[str, Any]) -> str:
    """Return a sentence about filters that match no stored response."""
    from kvproxy.operations.cache import sum_usage
    from kvproxy.operations.cache_parameters import UsageQuery

    for by in _FILTERS:
        if (value := filters.get(by)) is None:
            continue
        known = {tenant_name(group.name) for group in cache.perform(sum_usage, UsageQuery(by))}
        if tenant_name(value) not in known:
            return unknown_value("stored response", by, value, known)
    return "no stored response matches these options"
