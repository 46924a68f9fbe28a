"""Cache-Status (RFC 9211): what became of a request, for the client."""

import math

from kvproxy.flow.outcome import Match, Outcome, PrefixUse

CACHE = "kvproxy"
BYPASS = ("cache-status", f"{CACHE}; fwd=bypass")


def cache_headers(outcome: Outcome) -> list[tuple[str, str]]:
    """The headers that tell what became of a request."""
    if outcome.forwarded is None:
        return [("cache-status", _hit(outcome)), ("age", str(int(outcome.age)))]
    return [("cache-status", _forwarded(outcome))]


def _hit(outcome: Outcome) -> str:
    detail = "exact" if outcome.match is None else _semantic(outcome.match)
    if outcome.stale is not None:
        detail += f" {outcome.stale}"
    return f'{CACHE}; hit; ttl={math.floor(outcome.ttl) if outcome.stale else int(outcome.ttl)}; detail="{detail}"{_key(outcome)}'


def _key(outcome: Outcome) -> str:
    """The entry: the one that answered, or that was made."""
    return "" if outcome.entry is None else f'; key="{outcome.entry}"'


def _semantic(match: Match) -> str:
    parts = [f"semantic similarity={match.similarity:.3f}"]
    if match.score is not None:
        parts.append(f"verifier={match.score:.3f}")
    if match.error is not None:
        parts.append(f"error={match.error:.4f}")
    return " ".join(parts)


def _forwarded(outcome: Outcome) -> str:
    parts = [CACHE, f"fwd={outcome.forwarded}"]
    if outcome.status != 200:
        parts.append(f"fwd-status={outcome.status}")
    if outcome.stored:
        parts.append("stored")
    if outcome.collapsed:
        parts.append("collapsed")
    details = [_prefix(outcome.prefix)] if outcome.prefix is not None else []
    details += ["skipped"] if outcome.skipped else []
    if details:
        parts.append(f'detail="{" ".join(details)}"')
    return "; ".join(parts) + _key(outcome)


def _prefix(prefix: PrefixUse) -> str:
    tiers = f" tiers={prefix.tier_tokens}" if prefix.tier_tokens else ""
    return f"prefix {prefix.cached_tokens}/{prefix.prompt_tokens}{tiers}"
