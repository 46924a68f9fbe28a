"""Formats the statistics of the policy `learned` as sentences."""

from typing import Any

from kvproxy.commands.formatting import percent

BOUND_VALID_FROM = 500
"""Semantic hits from which on the bound holds as a share; with fewer hits it limits the number of wrong responses."""


def policy_sentences(learned: dict[str, Any]) -> list[str]:
    """Return sentences about comparisons, expected hits, served hits, and the error bound."""
    compared, served = int(learned["observations"]), int(learned["served"])
    return [
        "1 stored response was compared with a fresh one."
        if compared == 1
        else f"{compared:,} stored responses were compared with fresh ones.",
        f"The learned policy would answer {percent(learned['would_serve'])} of the similar questions.",
        *_served(served, learned["bound"]),
    ]


def _served(served: int, bound: float) -> list[str]:
    if not served:
        return ["No similar question was answered from the cache yet."]
    sentence = "1 similar question was" if served == 1 else f"{served:,} similar questions were"
    if served < BOUND_VALID_FROM:
        limit = f"At most {round(bound * BOUND_VALID_FROM):,} of the first {BOUND_VALID_FROM} responses will be wrong."
    else:
        limit = f"At most {percent(bound)} of these responses are wrong."
    return [f"{sentence} answered from the cache.", limit]
