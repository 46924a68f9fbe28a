"""The headers that the caches speak: Cache-Control (RFC 9111) and our own on requests, Cache-Status (RFC 9211) on responses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvproxy.errors import InvalidRequest
from kvproxy.index.lookup import Lookup
from kvproxy.index.policies.policy import Limits

CACHE = "kvproxy"
OURS = "x-kvproxy-"
"""What the names of our own headers begin with."""
TAGS = OURS + "tags"
TTL = OURS + "ttl"
_MOST_TAGS = 16
_LONGEST_TAG = 128


@dataclass(frozen=True, slots=True)
class CacheControl:
    """What a request asks of the caches.

    Attributes:
        no_cache: forward even when an answer is stored, and store the fresh one.
        no_store: keep the answer out of the cache.
        only_if_cached: answer from the cache or not at all.
        max_age: oldest acceptable answer in seconds.
        limits: least similarity and verifier's level, and largest error, of a semantic hit; stricter than the settings or void.
    """

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age: float | None = None
    limits: Limits = field(default_factory=Limits)


def parse_cache_control(header: str | None) -> CacheControl:
    """Directives of a request; unknown ones are ignored, as the RFC asks.

    Raises:
        InvalidRequest: a number is none.
    """
    found: dict[str, str] = {}
    for directive in (header or "").split(","):
        name, _, value = directive.strip().partition("=")
        found[name.lower()] = value.strip('"')
    return CacheControl(
        no_cache="no-cache" in found,
        no_store="no-store" in found,
        only_if_cached="only-if-cached" in found,
        max_age=_number(found, "max-age"),
        limits=Limits(_number(found, "similarity"), _number(found, "level"), _number(found, "max-error")),
    )


def _number(found: dict[str, str], name: str) -> float | None:
    if name not in found:
        return None
    try:
        number = float(found[name])
        if math.isnan(number):
            raise ValueError
        return number
    except ValueError:
        raise InvalidRequest(f"Cache-Control: {name} takes a number, as in {name}=60", param="Cache-Control") from None


def tags_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Names for the answer, from the header of tags, separated by commas; what is invalidated together shares one.

    Raises:
        InvalidRequest: there are too many, or one is too long.
    """
    tags = tuple(sorted({tag.strip() for tag in headers.get(TAGS, "").split(",")} - {""}))
    if len(tags) > _MOST_TAGS or any(len(tag) > _LONGEST_TAG for tag in tags):
        raise InvalidRequest(f"{TAGS} takes up to {_MOST_TAGS} tags of {_LONGEST_TAG} characters", param=TAGS)
    return tags


def ttl_of(headers: Mapping[str, str]) -> float | None:
    """Seconds that the answer is to be kept for, None where the request does not say.

    Raises:
        InvalidRequest: it is no such number.
    """
    if TTL not in headers:
        return None
    try:
        seconds = float(headers[TTL])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(f"{TTL} takes seconds, as in {TTL}: 600, or 0 to keep nothing", param=TTL)
    return seconds


def hit_status(expires: float, now: float, detail: str) -> str:
    """Cache-Status of an answer from the cache."""
    return f'{CACHE}; hit; ttl={max(0, int(expires - now))}; detail="{detail}"'


def semantic_detail(lookup: Lookup) -> str:
    """Why a similar question's answer was served, for Cache-Status."""
    chosen = lookup.chosen
    assert chosen is not None
    parts = [f"semantic similarity={chosen.similarity:.3f}"]
    if chosen.score is not None and chosen.score != chosen.similarity:
        parts.append(f"verifier={chosen.score:.3f}")
    if chosen.error is not None:
        parts.append(f"error={chosen.error:.4f}")
    return " ".join(parts)


def forward_status(
    reason: str, *, stored: bool = False, collapsed: bool = False, detail: str | None = None, status: int | None = None
) -> str:
    """Cache-Status of an answer that the backend gave.

    Args:
        reason: `uri-miss`, `request` (asked for by the client) or `bypass` (not cached at all).
        stored: it is in the cache now.
        collapsed: it was shared with an identical request under way.
        detail: what the backend says of its own cache.
        status: the backend's status, where it is an error.
    """
    parts = [CACHE, f"fwd={reason}"]
    if status is not None:
        parts.append(f"fwd-status={status}")
    if stored:
        parts.append("stored")
    if collapsed:
        parts.append("collapsed")
    if detail:
        parts.append(f'detail="{detail}"')
    return "; ".join(parts)
