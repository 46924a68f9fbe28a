"""What a tab shows beside the figures of every look: it is asked for while the tab is seen, and not otherwise."""

from dataclasses import dataclass
from typing import Any

from kvproxy.commands.client import ProxyClient
from kvproxy.errors import NoPrefixCache, NotFound

MOST = 200
"""Rows of a list."""
_BARS = 60
SPANS = {"5 min": 300, "1 h": 3_600, "24 h": 86_400, "7 d": 604_800}
DECISIONS = {
    "all": None,
    "served": "hit-semantic",
    "vetoed": "veto",
    "not alike": "below",
    "uncertain": "uncertain",
    "rejected": "rejected",
    "shadow": "shadow",
}
"""What became of a similar question, with what its reason begins with."""
NEWEST, NEXT = "newest", "next to go"
CHAINS, ORDER = "chains", "eviction order"
VARIANTS: dict[str, tuple[str, ...]] = {
    "saved": ("layer", "tenant", "model", "tag", "day"),
    "matches": tuple(DECISIONS),
    "stored": (NEWEST, NEXT, "tenant", "model", "endpoint", "tag"),
    "pool": ("state", "age", "tenant", CHAINS, ORDER),
    "why": tuple(SPANS),
}
"""The ways in which a tab may be seen; the first one is seen first."""
SHOWN = ("upstreams", "saved", "matches", "stored", "pool", "why")
"""Tabs that show what `find` gives; the others show what every look has."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked at.

    Attributes:
        tab: its name.
        by: one of its variants; empty where it has none.
        words: what the questions of stored responses must hold.
    """

    tab: str
    by: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """What was found.

    Attributes:
        wanted: what was asked for.
        found: what the proxy says; None where it refused, and `problem` says why.
    """

    wanted: Wanted
    found: dict[str, Any] | None
    problem: str | None = None


def find(client: ProxyClient, wanted: Wanted) -> dict[str, Any]:
    """What the proxy says; nothing for a tab that shows only what every look has.

    Raises:
        KvproxyError: it does not answer, or refuses.
    """
    match wanted.tab:
        case "why":
            span = SPANS[wanted.by]
            # The same steps for both, so that both tell of the same time.
            return {
                name: client.get("/admin/log/series", by=name, since=span, step=span / _BARS)
                for name in ("layer", "reason")
            }
        case "saved":
            return dict(client.get("/admin/savings", by=wanted.by))
        case "matches":
            return {"rows": client.get("/admin/log", judged="true", reason=DECISIONS[wanted.by], limit=MOST)}
        case "stored":
            return {"stats": client.get("/admin/cache/stats"), **_stored(client, wanted)}
        case "pool":
            return {"stats": client.get("/admin/blocks/stats"), **_pool(client, wanted.by)}
        case "upstreams":
            return _upstreams(client)
        case _:
            return {}


def _stored(client: ProxyClient, wanted: Wanted) -> dict[str, Any]:
    if wanted.by == NEWEST:
        rows, total = client.rows("/admin/cache", limit=MOST, search=wanted.words or None)
        return {"rows": rows, "total": total}
    if wanted.by == NEXT:
        rows, total = client.rows("/admin/cache/queue", limit=MOST)
        return {"rows": rows, "total": total}
    return {"rows": client.get("/admin/cache/usage", by=wanted.by)}


def _pool(client: ProxyClient, by: str) -> dict[str, Any]:
    if by != CHAINS:
        return {"map": client.get("/admin/blocks/map")}
    rows, total = client.rows("/admin/blocks/tree")
    return {"rows": rows, "total": total}


def _upstreams(client: ProxyClient) -> dict[str, Any]:
    try:
        rows = client.get("/admin/upstreams")
    except NotFound:
        # The embedded engine has none.
        return {"rows": [], "tiers": client.get("/admin/blocks/tiers"), "blocks": [], "chains": []}
    try:
        slots = client.get("/admin/blocks/stats")["slots"]
    except NoPrefixCache:
        slots = False
    return {
        "rows": rows,
        "tiers": [],
        "blocks": client.get("/admin/blocks") if slots else [],
        "chains": client.get("/admin/blocks/chains") if slots else [],
    }
