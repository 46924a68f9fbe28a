"""What an upstream's headers say of how long its answer keeps, and of its tags (RFC 9111, RFC 5861)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvproxy.apis.control import MAX_TAG_LENGTH, MAX_TAGS, TAGS
from kvproxy.backends.protocol import Headers

_SURROGATE_KEY = "surrogate-key"
_NEVER_STALE = ("must-revalidate", "proxy-revalidate")


@dataclass(frozen=True, slots=True)
class Directives:
    """What was said; None where it was not.

    Attributes:
        max_age: seconds for which the answer may be served.
        stale_while_revalidate, stale_if_error: seconds beyond; 0 where it may never be served past its time.
        tags: names for what is invalidated together.
    """

    max_age: float | None = None
    stale_while_revalidate: float | None = None
    stale_if_error: float | None = None
    tags: tuple[str, ...] = ()


def read_directives(headers: Headers) -> Directives:
    """What the headers of an answer say. A value that is no number is passed over, as the RFC asks."""
    said: dict[str, str] = {}
    tags: set[str] = set()
    for name, value in headers:
        if name == "cache-control":
            for directive in value.split(","):
                key, _, text = directive.strip().partition("=")
                said.setdefault(key.lower(), text.strip('"'))
        elif name == TAGS:
            tags |= {tag.strip() for tag in value.split(",")}
        elif name == _SURROGATE_KEY:
            tags |= set(value.split())
    # A cache that serves many goes by s-maxage, where both are there.
    whole = _seconds(said.get("s-maxage"))
    max_age = _seconds(said.get("max-age")) if whole is None else whole
    fit = tuple(sorted(tag for tag in tags if 0 < len(tag) <= MAX_TAG_LENGTH))[:MAX_TAGS]
    if any(name in said for name in _NEVER_STALE):
        return Directives(max_age, 0.0, 0.0, fit)
    return Directives(max_age, _seconds(said.get("stale-while-revalidate")), _seconds(said.get("stale-if-error")), fit)


def _seconds(text: str | None) -> float | None:
    try:
        seconds = math.nan if text is None else float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def first(given: Iterable[float | None], usual: float) -> float:
    """The first number that was given, or the usual one."""
    return next((number for number in given if number is not None), usual)
