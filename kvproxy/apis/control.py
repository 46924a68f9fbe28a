"""What a request's headers ask of the caches: Cache-Control (RFC 9111), and headers of our own. Read once, at the edge."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvproxy.errors import InvalidRequest
from kvproxy.index.policies.policy import Limits
from kvproxy.request_rule import NO_RULE, RequestRule

OURS = "x-kvproxy-"
"""What the names of our own headers begin with."""
TAGS, TTL, PRIORITY = (OURS + name for name in ("tags", "ttl", "priority"))
PACE, TIMEOUT = (OURS + name for name in ("pace", "timeout"))
ADMIN_TOKEN = OURS + "admin-token"
"""Carries the admin token where `Authorization` says who asks."""
STEERING = (PACE, PRIORITY, TAGS, TIMEOUT, TTL)
_KNOWN = frozenset({*STEERING, ADMIN_TOKEN, OURS + "request-id"})
"""All headers of ours that a request may have. The id of a response may come back with a request; it has no effect."""
MOST_TAGS = 16
LONGEST_TAG = 128


@dataclass(frozen=True, slots=True)
class Control:
    """What a request asks of the caches.

    Attributes:
        no_cache: forward even where an answer is stored, and store the fresh one.
        no_store: keep the answer out of the cache.
        only_if_cached: answer from the cache or not at all.
        confirm: hold the answer back until it is stored, however long that takes.
        max_age: oldest acceptable answer, in seconds.
        stale_if_error: seconds past its time for which an answer will do where no other can be had; None where it does not say.
        limits: what a semantic hit must reach; stricter than the settings, or without effect.
        tags: names for the stored answer; what is invalidated together shares one.
        ttl: seconds to keep the answer for; None where the request does not say.
        priority: 0 to 9; blocks of a higher one outlive those of a lower one.
        timeout: seconds within which the answer must be there to its end; None where the request does not say.
        pace: tokens a second at which a hit's stream is replayed, 0 for as many as come; None where it does not say.
        rule: the operator's rule.
    """

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    confirm: bool = False
    max_age: float | None = None
    stale_if_error: float | None = None
    limits: Limits = field(default_factory=Limits)
    tags: tuple[str, ...] = ()
    ttl: float | None = None
    priority: int = 0
    timeout: float | None = None
    pace: float | None = None
    rule: RequestRule = NO_RULE


_NOTHING_ASKED = Control()


def read_control(headers: Mapping[str, str]) -> Control:
    """What the headers ask for. Names in lower case; unknown directives are ignored, as the RFC asks.

    Raises:
        InvalidRequest: a header has an invalid value, or an unknown name with our prefix.
    """
    ours = [name for name in headers if name.startswith(OURS)]
    if "cache-control" not in headers and not ours:
        return _NOTHING_ASKED
    for name in ours:
        if name not in _KNOWN:
            raise _unknown(name)
    found: dict[str, str] = {}
    for directive in headers.get("cache-control", "").split(","):
        name, _, value = directive.strip().partition("=")
        found[name.lower()] = value.strip('"')
    return Control(
        no_cache="no-cache" in found,
        no_store="no-store" in found,
        only_if_cached="only-if-cached" in found,
        confirm="confirm" in found,
        max_age=_age(found, "max-age"),
        stale_if_error=_age(found, "stale-if-error"),
        limits=Limits(_share(found, "similarity"), _share(found, "level"), _share(found, "max-error")),
        tags=_tags(headers.get(TAGS, "")),
        ttl=_seconds(TTL, headers.get(TTL), "to keep nothing"),
        priority=_priority(headers.get(PRIORITY, "0")),
        timeout=_seconds(TIMEOUT, headers.get(TIMEOUT), "to have nothing computed"),
        pace=_seconds(PACE, headers.get(PACE), "for as many as come", "tokens a second"),
    )


def _unknown(name: str) -> InvalidRequest:
    near = difflib.get_close_matches(name.removeprefix(OURS), [each.removeprefix(OURS) for each in STEERING], n=1)
    hint = f"did you mean {OURS}{near[0]}?" if near else f"there are {', '.join(STEERING)}"
    return InvalidRequest(f"unknown header {name[:80]!r}: {hint}", param=name[:80])


def _age(found: Mapping[str, str], name: str) -> float | None:
    return _number(found, name, math.inf, f"takes seconds, as in {name}=60")


def _share(found: Mapping[str, str], name: str) -> float | None:
    return _number(found, name, 1.0, f"takes a number from 0 to 1, as in {name}=0.9")


def _number(found: Mapping[str, str], name: str, most: float, form: str) -> float | None:
    """A directive's number, from 0 to `most`; None without the directive."""
    if name not in found:
        return None
    try:
        number = float(found[name])
    except ValueError:
        number = math.nan
    if not (0 <= number <= most and number < math.inf):
        raise InvalidRequest(f"Cache-Control: {name} {form}", param="Cache-Control")
    return number


def _tags(text: str) -> tuple[str, ...]:
    tags = tuple(sorted({tag.strip() for tag in text.split(",")} - {""}))
    if len(tags) > MOST_TAGS or any(len(tag) > LONGEST_TAG for tag in tags):
        raise InvalidRequest(f"{TAGS} takes up to {MOST_TAGS} tags of {LONGEST_TAG} characters", param=TAGS)
    return tags


def _seconds(name: str, text: str | None, nothing: str, unit: str = "seconds") -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(f"{name} takes {unit}, as in {name}: 600, or 0 {nothing}", param=name)
    return seconds


def _priority(text: str) -> int:
    digit = text.strip()
    if len(digit) != 1 or digit not in "0123456789":
        raise InvalidRequest(f"{PRIORITY} is a whole number from 0 to 9, not {text[:20]!r}", param=PRIORITY)
    return int(digit)
