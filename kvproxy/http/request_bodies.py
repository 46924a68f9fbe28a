"""Reads request bodies with limits, and parses large bodies in a thread."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request

from kvproxy.apis.api import Api
from kvproxy.apis.api_request import ApiRequest, in_thread_if_large, parse_body
from kvproxy.apis.json import JsonMap, JsonObject, dumps
from kvproxy.apis.request_directives import CACHE_FIELD, apply_litellm_switches, read_directives
from kvproxy.errors import InvalidRequest, RequestTooLarge, RequestTooSlow
from kvproxy.flow.cache_keys import tenant_of
from kvproxy.http.body_budget import Reservation
from kvproxy.http.exchange_middleware import exchange_of
from kvproxy.settings import Settings


async def read_body(
    request: Request, limit: int, seconds: float | None = None, reservation: Reservation | None = None
) -> bytes:
    """Read a body. Raises RequestTooLarge, RequestTooSlow, or Overloaded; the rest of the body is not read.

    Args:
        limit: maximum bytes.
        seconds: timeout for the complete body.
        reservation: counts the body in the `BodyBudget`; None does not count it.
    """
    parts, announced = [], request.headers.get("content-length", "")
    size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    if size <= limit:
        size = 0
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        break
                    if reservation is not None:
                        reservation.add_bytes(len(part))
                    parts.append(part)
        except TimeoutError:
            message = f"the body did not arrive within {seconds:g} s: see the setting limits.body_seconds"
            raise RequestTooSlow(message) from None
    if size > limit:
        raise RequestTooLarge(
            f"the body has more than {limit:,} bytes: send less, or raise the setting limits.body_bytes"
        )
    raw = b"".join(parts)
    if reservation is not None:
        reservation.add_items(raw)
    return raw


async def read_api_request(request: Request, api: Api, raw: bytes, settings: Settings, *, check: bool) -> ApiRequest:
    """Parse a request to a cached API. Raises InvalidRequest.

    Use `check` if the embedded engine answers; an upstream validates the fields of the body itself.
    """
    body = await in_thread_if_large(len(raw), lambda: _parse_and_check(raw, api, check))
    headers = joined_headers(request)
    exchange = exchange_of(request.scope)
    client = exchange.client
    tenant = tenant_of(headers, settings.access.tenant_headers, None if client is None else client.tenant)
    control = read_directives(headers)
    if CACHE_FIELD in body:
        given = body
        body, control = apply_litellm_switches(given, control)
        raw = raw if body is given else dumps(body)
    return ApiRequest(api, body, raw, headers, tenant, exchange.request_id, query_of(request), control)


def _parse_and_check(raw: bytes, api: Api, check: bool) -> JsonObject:
    body = parse_body(raw)
    if check:
        api.check(body)
    return body


def joined_headers(request: Request) -> dict[str, str]:
    """Return the headers by lower-case name. Join the values of a repeated header with commas."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def query_of(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


def check_choices(body: JsonMap, limit: int) -> None:
    for name in ("n", "best_of"):
        asked = body.get(name)
        if isinstance(asked, int | float) and asked > limit:
            raise InvalidRequest(
                f"{name} is {limit} at the most: see the setting limits.choices", param=name, limit="choices"
            )


async def stream_upload(request: Request, upload_done: asyncio.Event, seconds: float) -> AsyncIterator[bytes]:
    """Yield the chunks of a body, then set `upload_done`. Raises RequestTooSlow if a chunk takes more than `seconds`."""
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
