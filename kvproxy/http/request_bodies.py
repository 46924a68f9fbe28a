"""Reads request bodies with limits, and parses large bodies in a thread."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from kvproxy.apis import sent_path
from kvproxy.apis.api import Api
from kvproxy.apis.api_request import ApiRequest, in_thread_if_large, parse_body
from kvproxy.apis.json import JsonMap, JsonObject, dumps
from kvproxy.apis.request_directives import CACHE_FIELD, apply_litellm_switches, read_directives
from kvproxy.backends.overload_log import OverloadLog
from kvproxy.errors import InvalidRequest, RequestTooLarge, RequestTooSlow
from kvproxy.flow.tenants import Tenants
from kvproxy.http.content_encoding import codings_of, decode
from kvproxy.http.exchange_middleware import exchange_of
from kvproxy.settings.limits import LimitSettings

FREE_BYTES = 64 * 1024
"""Bytes of each body that `BodyBudget` ignores, so that small requests are admitted even if large bodies use the whole budget."""
_ENCODING_HEADERS = ("content-encoding", "content-digest", "repr-digest", "digest", "content-md5")
"""Headers that describe the encoded body, which is forwarded decoded."""


class BodyBudget:
    """Counts the bytes and JSON items of all request bodies in flight, and enforces their limits."""

    def __init__(self, limits: LimitSettings) -> None:
        self.limits = limits
        self.log = OverloadLog()
        self.bytes = 0
        self.items = 0

    def reservation(self) -> "BodyReservation":
        return BodyReservation(self)


class BodyReservation:
    """The bytes and JSON items of one body in the budget, as a context manager that releases them."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0
        self.bytes = 0
        self.items = 0

    def __enter__(self) -> "BodyReservation":
        return self

    def __exit__(self, *raised: object) -> None:
        self._budget.bytes -= self.bytes
        self._budget.items -= self.items

    def reserve_bytes(self, size: int) -> None:
        self._size += size
        more = max(0, self._size - FREE_BYTES) - self.bytes
        if more <= 0:
            return
        if self._budget.bytes + more > self._budget.limits.in_flight_bytes:
            raise self._budget.log.refuse("in_flight_bytes", "the bodies of the requests in flight hold too many bytes")
        self.bytes += more
        self._budget.bytes += more

    def reserve_json_items(self, raw: bytes) -> None:
        """Add the number of JSON items in a body to the budget, because each parsed item occupies about 250 bytes."""
        limits = self._budget.limits
        # An upper bound: separators in texts count, too.
        items = raw.count(b",") + raw.count(b"{") + raw.count(b"[")
        if items > limits.items:
            raise RequestTooLarge(
                f"the body has more than {limits.items:,} items (commas, braces, and brackets):"
                " send fewer, or raise the setting limits.items",
                limit="items",
            )
        if self._budget.items + items > limits.in_flight_items:
            raise self._budget.log.refuse("in_flight_items", "the bodies of the requests in flight hold too many items")
        self.items += items
        self._budget.items += items


async def read_body(
    request: Request, max_bytes: int, seconds: float | None = None, reservation: BodyReservation | None = None
) -> bytes:
    """Read a body of at most `max_bytes`, within `seconds`. `reservation` counts it in the `BodyBudget`.

    Raises RequestTooLarge, RequestTooSlow, or Overloaded, without reading the rest of the body.
    """
    parts, announced = [], request.headers.get("content-length", "")
    size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    if size <= max_bytes:
        size = 0
        try:
            async with asyncio.timeout(seconds):
                more = True
                while more and size <= max_bytes:
                    received = await request.receive()
                    if received["type"] == "http.disconnect":
                        raise ClientDisconnect
                    part, more = received.get("body", b""), received.get("more_body", False)
                    size += len(part)
                    if reservation is not None and size <= max_bytes:
                        reservation.reserve_bytes(len(part))
                    parts.append(part)
        except TimeoutError:
            message = f"the body did not arrive within {seconds:g} s: see the setting limits.body_seconds"
            raise RequestTooSlow(message) from None
    if size > max_bytes:
        raise _too_large_error(max_bytes)
    return b"".join(parts)


async def decode_body(
    request: Request, raw: bytes, max_bytes: int, reservation: BodyReservation | None = None
) -> bytes:
    """Decode the content codings of a body, of at most `max_bytes` decoded bytes, and count its JSON items.

    Raises RequestTooLarge, UnsupportedEncoding, InvalidRequest, or Overloaded.
    """
    codings = codings_of(request.headers.getlist("content-encoding"))
    if codings:
        chunks, parts, size = decode([raw], codings), list[bytes](), 0
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            size += len(chunk)
            if size > max_bytes:
                raise _too_large_error(max_bytes)
            if reservation is not None:
                reservation.reserve_bytes(len(chunk))
            parts.append(chunk)
        raw = b"".join(parts)
    if reservation is not None:
        reservation.reserve_json_items(raw)
    return raw


def _too_large_error(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"the body has more than {max_bytes:,} bytes: send less, or raise the setting limits.body_bytes"
    )


async def read_api_request(
    request: Request, api: Api, raw: bytes, tenants: Tenants, *, check_fields: bool
) -> ApiRequest:
    """Parse a request to a cached API, given its decoded body. Raises InvalidRequest.

    Set `check_fields` for the embedded engine; an upstream checks the fields of the body itself.
    """
    body = await in_thread_if_large(len(raw), lambda: _parse_and_check(raw, api, check_fields))
    headers = {name: value for name, value in joined_headers(request).items() if name not in _ENCODING_HEADERS}
    exchange = exchange_of(request.scope)
    client = exchange.client
    tenant = tenants.tenant_of(headers, None if client is None else client.tenant)
    control = read_directives(headers)
    if CACHE_FIELD in body:
        given = body
        body, control = apply_litellm_switches(given, control)
        raw = raw if body is given else dumps(body)
    query, path = query_of(request), sent_path(request.scope["path"])
    return ApiRequest(
        api, body, raw, headers, tenant, exchange.request_id, query, control, tenants.contained_headers, path
    )


def _parse_and_check(raw: bytes, api: Api, check_fields: bool) -> JsonObject:
    body = parse_body(raw)
    if check_fields:
        api.check(body)
    return body


def joined_headers(request: Request) -> dict[str, str]:
    """Return the headers by lower-case name. Join the values of a repeated header with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in request.scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def query_of(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


def check_number_of_choices(body: JsonMap, limit: int) -> None:
    for name in ("n", "best_of"):
        asked = body.get(name)
        if isinstance(asked, int | float) and asked > limit:
            raise InvalidRequest(
                f"{name} is {limit} at the most: see the setting limits.choices", param=name, limit="choices"
            )


async def stream_upload(request: Request, upload_done: asyncio.Event, seconds: float) -> AsyncIterator[bytes]:
    """Yield the chunks of a body, each within `seconds`, then set `upload_done`."""
    parts = request.stream()
    try:
        while True:
            try:
                async with asyncio.timeout(seconds):
                    chunk = await anext(parts, None)
            except TimeoutError:
                raise RequestTooSlow(
                    f"no part of the body arrived for {seconds:g} s: see the setting limits.body_seconds"
                ) from None
            if chunk is None:
                return
            if chunk:
                yield chunk
    finally:
        upload_done.set()
