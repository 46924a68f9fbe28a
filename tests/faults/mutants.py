"""Mutations of a request in one or two places: its JSON, bytes, headers, and query."""

import json
import random
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from tests.faults.header_names import request_headers

_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, 1e-320),
    *("", " ", "\x00", "\u2028", "\U0001f600", "x" * 5000, "true", "1", "a,b"),
    *([], {}, [[]], [None], {"": None}, [{"type": "text"}], {"role": "user"}, ["x"] * 300),
)
_VALUES = {
    "cache-control": (
        *("no-cache", "no-store", "max-age=x", "max-age=-1", "only-if-cached, no-cache"),
        *(
            f"{name}={value}"
            for name in ("min-similarity", "min-probability", "max-error")
            for value in (0.9, "nan", 2)
        ),
    ),
    "x-kvproxy-ttl": ("0", "1", "-1", "inf", "1e400", ""),
    "x-kvproxy-priority": ("0", "9", "10", "x", "-1"),
    "x-kvproxy-tags": ("a", ",,,", "a" * 200, ",".join(map(str, range(40)))),
    "x-kvproxy-timeout": ("30", "0", "x", "1e400"),
    "content-type": ("text/plain", "application/json; charset=latin-1", "multipart/form-data", ""),
    "content-encoding": ("gzip", "br", "identity"),
    "authorization": ("Bearer ", "Basic %%%", "x" * 4000),
    "x-request-id": ("", "x" * 5000, "\xff\xfe"),
    "accept": ("text/event-stream",),
    "accept-encoding": ("gzip, br",),
    "te": ("trailers",),
    "expect": ("100-continue",),
    "origin": ("http://evil.example",),
    "x-forwarded-for": ("10.0.0.1",),
    "via": ("1.1 x",),
    "cookie": ("a=b; \xff",),
}
# Values that parsers of URLs, numbers, dates, lists, and cookies refuse.
_ODD_VALUES = (
    *("", " ", ",", ";", "=", '"', "%", "%zz", "%00", ":", "/", "//", "[", "]", "http://]", "http://[", "http://[::1"),
    *("http://a]b", "[::1", "[x]:1", "a:99999", "a:x", "null", "*", "nan", "inf", "-inf", "1e400", "-1", "0x1", "1_0"),
    *("9" * 30, "9" * 5000, "x" * 5000, "\xff", "\x80\x9b31m", "\xa0", "a=b; a=c", '="', "a,b,,c", 'W/"', "\ttab"),
    *("Bearer", "bearer  ", "Basic Og==", "00-" + "0" * 32 + "-" + "0" * 16 + "-zz", "Thu, 99 Foo 9999", "a" * 129),
)
# The harness `smuggling` varies the framing of requests, which needs a connection of its own.
_FRAMING = {"content-length", "transfer-encoding", "connection", "upgrade", "http2-settings", "expect"}
_HEADERS = [(name, value) for name, values in _VALUES.items() for value in values]


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it is sent."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


def mutant(sent: Sent, generator: random.Random) -> Sent:
    """Return the request with one or two changes."""
    for _ in range(generator.randrange(1, 3)):
        sent = generator.choice((_json, _json, _bytes, _header, _header, _query))(sent, generator)
    return sent


def _json(sent: Sent, generator: random.Random) -> Sent:
    try:
        body = json.loads(sent.body or b"")
    except (ValueError, RecursionError):
        return _bytes(sent, generator)
    return replace(sent, body=json.dumps(_changed(body, generator, generator.randrange(6))).encode())


def _changed(value: Any, generator: random.Random, depth: int) -> Any:
    """Return a JSON value with one change, at most `depth` levels deep."""
    if depth and isinstance(value, dict) and value:
        name = generator.choice(sorted(value))
        if generator.random() < 0.1:
            return {key: kept for key, kept in value.items() if key != name}
        return value | {name: _changed(value[name], generator, depth - 1)}
    if depth and isinstance(value, list) and value:
        place = generator.randrange(len(value))
        return [*value[:place], _changed(value[place], generator, depth - 1), *value[place + 1 :]]
    return generator.choice(_ODD)


def _bytes(sent: Sent, generator: random.Random) -> Sent:
    body = sent.body or b"{}"
    at = generator.randrange(len(body)) if body else 0
    kinds = (
        body[:at],
        body[:at] + bytes([generator.randrange(256)]) + body[at + 1 :],
        b"\xef\xbb\xbf" + body,
        body + body,
        b"[" * 2000 + b"]" * 2000,
        b'{"messages": ' * 300 + b"1" + b"}" * 300,
        body.replace(b"1", b"NaN"),
        body.replace(b":", b":1e999,", 1),
        body.replace(b'"', b'"\\ud800', 1),
        b"",
    )
    return replace(sent, body=generator.choice(kinds))


def _header(sent: Sent, generator: random.Random) -> Sent:
    """Add a header that the proxy reads, or replace it."""
    if generator.random() < 0.3:
        name, value = generator.choice(_HEADERS)
    else:
        name, value = generator.choice(sorted(request_headers() - _FRAMING)), generator.choice(_ODD_VALUES)
    kept = sent.headers
    if generator.random() < 0.5:
        kept = tuple(each for each in kept if each[0] != name)
    return replace(sent, headers=(*kept, (name, value)))


def _query(sent: Sent, generator: random.Random) -> Sent:
    path, _, query = sent.target.partition("?")
    name = generator.choice(
        ("limit", "older_than", "api", "name", "ttl", "leaf", "models", "search", "key", "all", "x")
    )
    value = generator.choice(
        ("", "0", "-1", "nan", "inf", "1e400", "x", "\x00", "\xff", "%", "own", "chat", "a" * 3000)
    )
    more = f"{name}={quote(value, encoding='latin-1')}"
    return replace(sent, target=f"{path}?{f'{query}&' if query else ''}{more}")
