"""What the policy learned has learned, in sentences."""

from typing import Any

from kvproxy.commands.formatting import percent

PROMISED_FROM = 500
"""Answers served from which on the bound is a share of those served; before that, it is on as many."""


def answered(learned: dict[str, Any]) -> list[str]:
    """What was compared, what would be served, what was, and how much of it may be wrong.

    Args:
        learned: the figures of one namespace or of all, as the proxy tells them.
    """
    compared, served = int(learned["observations"]), int(learned["served"])
    return [
        "1 stored answer was compared with a fresh one."
        if compared == 1
        else f"{compared:,} stored answers were compared with fresh ones.",
        f"What was learned would answer {percent(learned['would_serve'])} of the similar questions.",
        *_served(served, learned["bound"]),
    ]


def _served(served: int, bound: float) -> list[str]:
    if not served:
        return ["No similar question was answered from the cache yet."]
    told = "1 similar question was" if served == 1 else f"{served:,} similar questions were"
    if served < PROMISED_FROM:
        most = round(bound * PROMISED_FROM)
        wrong = f"At most {most:,} of the first {PROMISED_FROM} answers will be wrong."
    else:
        wrong = f"At most {percent(bound)} of these answers are wrong."
    return [f"{told} answered from the cache.", wrong]
