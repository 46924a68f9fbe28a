"""Reads the parameters of admin requests, and writes rows as JSON."""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.blocks.row_types import BlockLocation, BlockRow, ChainRow
from kvproxy.errors import InvalidRequest
from kvproxy.http.admin_sessions import SESSION_HEADER
from kvproxy.http.request_bodies import decode_body, read_api_request, read_body
from kvproxy.http.services import services
from kvproxy.journal.record import Record
from kvproxy.units import parse_seconds

Row = BlockRow | ChainRow | BlockLocation | Record
_MAX = 2.0**31
T = TypeVar("T", bound=str)


def reply(value: object, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response; the value may contain dataclasses."""
    return Response(dumps(value), media_type="application/json", headers=headers)


def fields_of(row: Row) -> dict[str, object]:
    """Return the fields of a row by name; unlike `dataclasses.asdict`, copy no values."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def flat_fields(row: BlockRow | ChainRow) -> dict[str, object]:
    """Return the fields of a row, with the fields of its location (`place`) instead of `place` itself."""
    found = fields_of(row)
    del found["place"]
    return found if row.place is None else found | fields_of(row.place)


async def read_request(request: Request) -> ApiRequest:
    """Read a request in the format of the API that the query parameter `api` names."""
    api = APIS[parse_choice(request.query_params, "api", APIS, "chat")]
    app = services(request)
    limit = app.settings.limits.body_bytes
    raw = await decode_body(request, await read_body(request, limit), limit)
    if SESSION_HEADER in request.headers:
        # The cookies belong to the dashboard, not to a tenant.
        headers = [header for header in request.scope["headers"] if header[0] != b"cookie"]
        request = Request({**request.scope, "headers": headers}, request.receive)
    # The query belongs to the admin route.
    return replace(await read_api_request(request, api, raw, app.tenants, check_fields=True), query="", path="")


def parse_number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MAX:
        raise InvalidRequest(f"{name} must be a number of at least 0, not {text[:40]!r}", param=name)
    return value


def parse_choice(query: QueryParams, name: str, choices: Collection[T], default: T) -> T:
    text = query.get(name, default)
    for choice in choices:
        if choice == text:
            return choice
    raise InvalidRequest(f"{name} is one of {', '.join(choices)}, not {text[:40]!r}", param=name)


def parse_limit_and_offset(query: QueryParams, default_limit: str) -> tuple[int, int]:
    limit, offset = query.get("limit", default_limit), query.get("offset", "0")
    return int(parse_number(limit, "limit")), int(parse_number(offset, "offset"))


def parse_duration(text: str, name: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from None
