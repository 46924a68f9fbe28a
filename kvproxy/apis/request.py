"""A request to one of the cached APIs, as the rest of the proxy sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kvproxy.apis.api import Api
from kvproxy.apis.control import Control
from kvproxy.apis.json import JsonMap, JsonObject, loads
from kvproxy.errors import InvalidRequest
from kvproxy.trace import Trace

PUBLIC = "public"
"""The tenant of those who say nothing of themselves."""
BYTES_PER_TOKEN = 4
"""What a token is estimated with before a tokenizer has seen it."""


class Account(Protocol):
    """Pays for one request of a client."""

    def reserve(self, tokens: int) -> None:
        """Take what the work, or a part of it, is estimated to cost, before it begins.

        Raises:
            TooMany: the client has used up what it may use now.
            TooLarge: the client may never use so much.
        """

    def settle(self, tokens: int) -> None:
        """Replace everything reserved by the final cost."""

    def cached(self, tokens: int) -> None:
        """Say that a stored answer of so many tokens is given; raises as `reserve`, where such answers cost anything."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request.

    Attributes:
        api: which API it came to.
        body: the parsed JSON.
        raw: the bytes as the client sent them, or as an edit left them.
        headers: the client's, names in lower case.
        tenant: who asks, see `flow/keys.py`.
        request_id: also given to the client; a client that chose it may choose it twice.
        query: the URL's query, without its question mark.
        control: what its headers ask of the caches.
        account: pays for it; None where nobody counts.
        trace: the trace that it belongs to; None where nobody traces.
    """

    api: Api
    body: JsonObject
    raw: bytes
    headers: Mapping[str, str]
    tenant: str
    request_id: str
    query: str = ""
    control: Control = field(default_factory=Control)
    account: Account | None = None
    trace: Trace | None = None

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))


def asks_for_sample(body: JsonMap) -> bool:
    """Whether a body asks for a random sample: an explicit temperature above 0, and no seed that would repeat it."""
    temperature = body.get("temperature")
    given = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    return given and temperature > 0 and body.get("seed") is None  # type: ignore[operator]


def read_body(raw: bytes) -> JsonObject:
    """A body as an object.

    Raises:
        InvalidRequest: it is no JSON object.
    """
    try:
        body = loads(raw)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    return body
