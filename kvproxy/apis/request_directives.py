"""Cache directives of a request: Cache-Control (RFC 9111), `X-KVProxy-*` headers, and LiteLLM's switches."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvproxy.apis.json import Json, JsonObject
from kvproxy.errors import InvalidDirective
from kvproxy.index.policies.policy import Limits
from kvproxy.settings.rules import NO_RULE, RuleSettings
from kvproxy.units import MAX_SECONDS, parse_seconds

HEADER_PREFIX = "x-kvproxy-"
_CACHE_CONTROL = "Cache-Control"
TAGS_HEADER, TTL_HEADER, PRIORITY_HEADER = (HEADER_PREFIX + name for name in ("tags", "ttl", "priority"))
TIMEOUT_HEADER, NAMESPACE_HEADER = (HEADER_PREFIX + name for name in ("timeout", "namespace"))
ADMIN_TOKEN_HEADER = HEADER_PREFIX + "admin-token"
"""Header with the admin token, for requests whose `Authorization` has a client's key."""
DIRECTIVE_HEADERS = (NAMESPACE_HEADER, PRIORITY_HEADER, TAGS_HEADER, TIMEOUT_HEADER, TTL_HEADER)
# A client may send back a response's request id, without effect.
_KNOWN = frozenset({*DIRECTIVE_HEADERS, ADMIN_TOKEN_HEADER, HEADER_PREFIX + "request-id"})
PROJECT_TAG = "project:"
"""Start of the tag that names the project of a request."""
MAX_TAGS = 16
MAX_TAG_LENGTH = 128
MAX_NAMESPACE_LENGTH = 128
# LiteLLM's cache switches, in the field `cache` of the body: https://docs.litellm.ai/docs/proxy/caching.
CACHE_FIELD = "cache"
_DELTA_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LITELLM_FLAGS = {"no-cache": ("no_cache",), "no-store": ("no_store",), "use-cache": ("no_cache", "no_store")}
_LITELLM_DURATIONS = {"ttl": "ttl", "s-maxage": "max_age", "s-max-age": "max_age"}
_LITELLM_SWITCHES = (*_LITELLM_FLAGS, *_LITELLM_DURATIONS, "namespace")


@dataclass(frozen=True, slots=True)
class RequestDirectives:
    """Cache directives of a request. Unset numbers are None.

    Attributes:
        confirm: send the response only after the store has committed it.
        warming: the request warms the caches; no client reads its response.
        stale_if_error: seconds after expiry during which a stale response may replace an error.
        limits: minimum similarity, minimum probability, and maximum error of a semantic hit.
        ttl: seconds until the stored response expires.
        priority: 0 to 9; KV blocks of a higher priority are evicted later.
        timeout: seconds from the request's arrival until the response must be complete.
        namespace: requests in different namespaces share no responses.
        rule: the operator's rule; `NO_RULE` if no rule matches.
    """

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    confirm: bool = False
    warming: bool = False
    max_age: float | None = None
    stale_if_error: float | None = None
    limits: Limits = field(default_factory=Limits)
    tags: tuple[str, ...] = ()
    ttl: float | None = None
    priority: int = 0
    timeout: float | None = None
    namespace: str = ""
    rule: RuleSettings = NO_RULE


NO_DIRECTIVES = RequestDirectives()


def read_directives(headers: Mapping[str, str]) -> RequestDirectives:
    """Parse a request's headers. Raises InvalidDirective for an invalid value or an unknown `x-kvproxy-*` header."""
    own = [name for name in headers if name.startswith(HEADER_PREFIX)]
    for name in own:
        if name not in _KNOWN:
            raise _unknown_header(name)
    if not own and "cache-control" not in headers:
        return NO_DIRECTIVES
    directives = parse_cache_control([headers.get("cache-control", "")])
    return RequestDirectives(
        no_cache="no-cache" in directives,
        no_store="no-store" in directives,
        only_if_cached="only-if-cached" in directives,
        confirm="confirm" in directives,
        warming="warming" in directives,
        max_age=_parse_seconds(directives, "max-age", _CACHE_CONTROL),
        stale_if_error=_parse_seconds(directives, "stale-if-error", _CACHE_CONTROL),
        limits=Limits(*(_parse_score(directives, name) for name in ("min-similarity", "min-probability", "max-error"))),
        tags=_parse_tags(headers.get(TAGS_HEADER, "")),
        ttl=_parse_seconds(headers, TTL_HEADER),
        priority=_parse_priority(headers.get(PRIORITY_HEADER, "0")),
        timeout=_parse_seconds(headers, TIMEOUT_HEADER),
        namespace=check_namespace(headers.get(NAMESPACE_HEADER, ""), NAMESPACE_HEADER),
    )


def parse_cache_control(values: Iterable[str]) -> dict[str, str]:
    """Parse Cache-Control headers. Return the argument of each directive, or "", by the directive's name in lower case."""
    arguments: dict[str, str] = {}
    for directive in ",".join(values).split(","):
        name, _, value = directive.strip().partition("=")
        arguments.setdefault(name.lower(), value.strip('"'))
    return arguments


def parse_delta_seconds(text: str | None) -> float | None:
    """Parse the argument of a response's cache directive, at most `MAX_SECONDS`; None if it is missing or invalid.

    RFC 9111, section 1.2.2, defines integers; fractions and exponents are accepted.
    """
    return min(float(text), MAX_SECONDS) if text is not None and _DELTA_SECONDS.fullmatch(text) else None


def _unknown_header(name: str) -> InvalidDirective:
    known = [header.removeprefix(HEADER_PREFIX) for header in DIRECTIVE_HEADERS]
    close = difflib.get_close_matches(name.removeprefix(HEADER_PREFIX), known, n=1)
    hint = f"did you mean {HEADER_PREFIX}{close[0]}?" if close else f"valid headers are {', '.join(DIRECTIVE_HEADERS)}"
    return InvalidDirective(f"unknown header {name[:80]!r}: {hint}", param=name[:80])


def _parse_score(directives: Mapping[str, str], name: str) -> float | None:
    if name not in directives:
        return None
    try:
        number = float(directives[name])
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        message = f"{_CACHE_CONTROL}: {name} takes a number from 0 to 1, as in {name}=0.9"
        raise InvalidDirective(message, param=_CACHE_CONTROL)
    return number


def _parse_seconds(values: Mapping[str, str], name: str, header: str = "") -> float | None:
    if name not in values:
        return None
    try:
        return parse_seconds(values[name])
    except ValueError as error:
        raise InvalidDirective(f"{f'{header}: ' if header else ''}{name}: {error}", param=header or name) from None


def check_namespace(text: str, param: str) -> str:
    name = text.strip()
    if len(name) > MAX_NAMESPACE_LENGTH:
        raise InvalidDirective(f"{param}: a namespace has up to {MAX_NAMESPACE_LENGTH} characters", param=param)
    return name


def ordered_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the first tag `project:NAME`, which is the request's project, and then the other tags in alphabetical order."""
    given = tuple(tags)
    project = project_tags(given)[:1]
    return tuple(sorted(set(given), key=lambda tag: (tag not in project, tag)))


def project_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags `project:NAME` in the given order: only the first names the project."""
    return tuple(tag for tag in tags if tag.startswith(PROJECT_TAG))


def project_of(tags: Iterable[str]) -> str:
    """Return the project that a request's tags name, the first one; empty without one."""
    return "".join(project_tags(tags)[:1]).removeprefix(PROJECT_TAG)


def _parse_tags(text: str) -> tuple[str, ...]:
    tags = ordered_tags(tag for part in text.split(",") if (tag := part.strip()))
    if len(tags) > MAX_TAGS or any(len(tag) > MAX_TAG_LENGTH for tag in tags):
        raise InvalidDirective(
            f"{TAGS_HEADER} takes up to {MAX_TAGS} tags of {MAX_TAG_LENGTH} characters", param=TAGS_HEADER
        )
    return tags


def _parse_priority(text: str) -> int:
    digit = text.strip()
    if len(digit) != 1 or digit not in "0123456789":
        raise InvalidDirective(
            f"{PRIORITY_HEADER} must be a whole number from 0 to 9, not {text[:20]!r}", param=PRIORITY_HEADER
        )
    return int(digit)


def apply_litellm_switches(body: JsonObject, directives: RequestDirectives) -> tuple[JsonObject, RequestDirectives]:
    """Move LiteLLM's switches from the field `cache` of the body to `directives`. Headers take precedence."""
    given = body.get(CACHE_FIELD)
    if not isinstance(given, dict):
        return body, directives
    switches: dict[str, Any] = {}
    for name, value in given.items():
        switches |= _read_switch(name, value)
    for name in ("max_age", "ttl", "namespace"):
        if getattr(directives, name) not in (None, ""):
            switches.pop(name, None)
    kept = {name: value for name, value in switches.items() if value is not False}
    return {name: value for name, value in body.items() if name != CACHE_FIELD}, replace(directives, **kept)


def _read_switch(name: str, value: Json) -> dict[str, Any]:
    if name in _LITELLM_FLAGS and isinstance(value, bool):
        return dict.fromkeys(_LITELLM_FLAGS[name], value != (name == "use-cache"))
    if name in _LITELLM_DURATIONS:
        try:
            if (seconds := parse_seconds(value)) >= 0:
                return {_LITELLM_DURATIONS[name]: seconds}
        except ValueError as error:
            raise InvalidDirective(f"{CACHE_FIELD}.{name}: {error}", param=CACHE_FIELD) from None
    if name == "namespace" and isinstance(value, str):
        return {name: check_namespace(value, CACHE_FIELD)}
    if name not in _LITELLM_SWITCHES:
        raise InvalidDirective(
            f"unknown switch {name[:40]!r} in cache: use {', '.join(_LITELLM_SWITCHES)}", param=CACHE_FIELD
        )
    form = "true or false" if name in _LITELLM_FLAGS else "at least 0" if name in _LITELLM_DURATIONS else "a text"
    raise InvalidDirective(f"{CACHE_FIELD}.{name} must be {form}", param=CACHE_FIELD)
