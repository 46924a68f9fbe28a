"""A parsed request to one of the cached APIs."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kvproxy.apis.api import Api
from kvproxy.apis.json import JsonMap, JsonObject, loads
from kvproxy.apis.request_directives import Control
from kvproxy.errors import InvalidRequest

PUBLIC_TENANT = "public"
"""Tenant of requests without a key or a header that names a user."""
BYTES_PER_TOKEN = 4
"""Estimate without a tokenizer."""
_LARGE_BYTES = 64 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request.

    Attributes:
        raw: the client's bytes, or the bytes after edits.
        headers: names in lower case.
        tenant: see `flow/cache_keys.py`.
    """

    api: Api
    body: JsonObject
    raw: bytes
    headers: Mapping[str, str]
    tenant: str
    request_id: str
    query: str = ""
    control: Control = field(default_factory=Control)

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))


def requests_sampling(body: JsonMap) -> bool:
    """Whether a request sets a temperature above 0 and no seed."""
    temperature = body.get("temperature")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    return is_number and temperature > 0 and body.get("seed") is None  # type: ignore[operator]


async def in_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Run work on a body of `size` bytes. Work on a large body runs in a thread, so that it does not block the event loop."""
    return await asyncio.to_thread(work) if size > _LARGE_BYTES else work()


def parse_body(raw: bytes) -> JsonObject:
    """Parse a body. Raises InvalidRequest if it is not a JSON object."""
    try:
        body = loads(raw)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    return body
