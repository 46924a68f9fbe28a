import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kvproxy.apis.api import Api
from kvproxy.apis.json import JsonMap, JsonObject, loads
from kvproxy.apis.request_directives import RequestDirectives
from kvproxy.errors import InvalidRequest

PUBLIC_TENANT = "public"
"""Tenant of requests without an API key and without a header of `access.tenant_headers`."""
BYTES_PER_TOKEN = 4
"""Estimated size of a token in a prompt that is not tokenized."""
_LARGE_BYTES = 64 * 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request to a cached API.

    Attributes:
        raw: `body` as JSON, as the client sent it or after the operator's edits.
        headers: names in lower case.
        tenant: see `flow.cache_keys.tenant_of`.
    """

    api: Api
    body: JsonObject
    raw: bytes
    headers: Mapping[str, str]
    tenant: str
    request_id: str
    query: str = ""
    control: RequestDirectives = field(default_factory=RequestDirectives)

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))


def requests_sampling(body: JsonMap) -> bool:
    temperature = body.get("temperature")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    return is_number and temperature > 0 and body.get("seed") is None  # type: ignore[operator]


async def in_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Run `work` on a body of `size` bytes, in a thread if the body is large enough to block the event loop."""
    return await asyncio.to_thread(work) if size > _LARGE_BYTES else work()


def parse_body(raw: bytes) -> JsonObject:
    try:
        body = loads(raw)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    return body
