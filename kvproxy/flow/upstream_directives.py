"""Reads cache directives and tags from an upstream's response headers (RFC 9111, RFC 5861)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvproxy.apis.request_directives import MAX_TAG_LENGTH, MAX_TAGS, TAGS_HEADER, parse_cache_control
from kvproxy.backends.protocol import Headers

_SURROGATE_KEY = "surrogate-key"
_NEVER_STALE = ("must-revalidate", "proxy-revalidate")


@dataclass(frozen=True, slots=True)
class ResponseDirectives:
    """Cache directives of an upstream's response, in seconds; None if missing.

    With `must-revalidate`, `stale_while_revalidate` and `stale_if_error` are 0.
    """

    max_age: float | None = None
    stale_while_revalidate: float | None = None
    stale_if_error: float | None = None
    tags: tuple[str, ...] = ()


def read_response_directives(headers: Headers) -> ResponseDirectives:
    directives = parse_cache_control(value for name, value in headers if name == "cache-control")
    tags: set[str] = set()
    for name, value in headers:
        if name == TAGS_HEADER:
            tags |= {tag.strip() for tag in value.split(",")}
        elif name == _SURROGATE_KEY:
            tags |= set(value.split())
    # For a shared cache, s-maxage takes precedence.
    whole = _parse_seconds(directives.get("s-maxage"))
    max_age = _parse_seconds(directives.get("max-age")) if whole is None else whole
    fit = tuple(sorted(tag for tag in tags if 0 < len(tag) <= MAX_TAG_LENGTH))[:MAX_TAGS]
    if any(name in directives for name in _NEVER_STALE):
        return ResponseDirectives(max_age, 0.0, 0.0, fit)
    return ResponseDirectives(
        max_age,
        _parse_seconds(directives.get("stale-while-revalidate")),
        _parse_seconds(directives.get("stale-if-error")),
        fit,
    )


def _parse_seconds(text: str | None) -> float | None:
    try:
        seconds = math.nan if text is None else float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def first_not_none(values: Iterable[float | None], default: float) -> float:
    return next((number for number in values if number is not None), default)
