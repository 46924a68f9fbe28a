"""A request to one of the cached APIs, as the rest of the proxy sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvproxy.apis.api import Api
from kvproxy.apis.control import Control
from kvproxy.apis.json import JsonMap, JsonObject, loads
from kvproxy.errors import InvalidRequest

PUBLIC = "public"
"""Tenant of requests without a key or a header that names a user."""
BYTES_PER_TOKEN = 4
"""Estimate of the size of a token without a tokenizer."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request.

    Attributes:
        api: which API it came to.
        body: the parsed JSON.
        raw: the bytes as the client sent them, or as an edit left them.
        headers: the client's, names in lower case.
        tenant: see `flow/keys.py`.
        request_id: shown to the client, too. A client that chooses it may repeat it.
        query: the URL's query without the question mark.
        control: instructions for the caches from its headers and rule.
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
