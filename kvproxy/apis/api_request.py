"""A client's request to a cached API."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import TypeVar

from kvproxy.apis.api import Api
from kvproxy.apis.json import JsonMap, JsonObject, dumps, field, loads
from kvproxy.apis.model_route import ModelRoute
from kvproxy.apis.request_directives import NO_DIRECTIVES, RequestDirectives
from kvproxy.errors import InvalidJson, InvalidRequest

PUBLIC_TENANT = "public"
"""Tenant of requests with neither an API key nor a header that `access.tenant_headers` lists."""
BYTES_PER_TOKEN = 4
"""Estimated size of a token in a prompt that is not tokenized."""
MAX_MODEL_NAME = 256
BREAKPOINTS_TAG = "breakpoints:"
"""Beginning of the tag of requests in which the proxy set breakpoints."""
_LARGE_BYTES = 64 * 1024
SESSION_HEADERS = (
    "x-session-id",
    # Claude Code, opencode, and Codex.
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-session-affinity",
    "session-id",
    "session_id",
)
_MAX_SESSION_NAME = 128
_LEGACY_SESSION = re.compile(r"_session_([0-9a-fA-F-]{36})$")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Delivery:
    """The last upstream that received a request, also if it sent no response.

    Attributes:
        upstream: its URL; empty if no upstream received the request.
        received_at: value of `time.monotonic`; None until the present upstream has received it.
        on_received: called when an upstream receives the request.
        fallback: model that the upstream got instead of the requested one; empty for the requested one.
    """

    upstream: str = ""
    received_at: float | None = None
    fallback: str = ""
    on_received: Callable[[], object] | None = None

    def record(self, upstream: str) -> None:
        self.upstream, self.received_at = upstream, time.monotonic()
        if self.on_received is not None:
            self.on_received()


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request to a cached API.

    Attributes:
        raw: `body` as JSON, as the client sent it or after the operator's edits.
        headers: names in lower case.
        tenant: the client, or one of its users.
        tenant_headers: headers whose values `tenant` contains.
        path: path for the upstream; empty for the path of the API.
        conversation: digests of the conversation up to each message, if a step of the rule needs them.
        unmarked_body: `body` without the fields that the proxy added for the provider's cache, which the model does not read;
            None if it added no field.
        omits_breakpoints: the proxy left out breakpoints, because a block before them changes in each request.
        moved_texts: texts that edits appended to the last message; the client sent them elsewhere.
        route: the upstreams of the model; None if all upstreams serve the same models.
        delivery: the upstream that received the request; all copies of the request share it.
    """

    api: Api
    body: JsonObject
    raw: bytes
    headers: Mapping[str, str]
    tenant: str
    request_id: str
    query: str = ""
    control: RequestDirectives = NO_DIRECTIVES
    tenant_headers: Sequence[str] = ()
    path: str = ""
    conversation: Sequence[bytes] = ()
    unmarked_body: JsonObject | None = None
    omits_breakpoints: bool = False
    moved_texts: tuple[str, ...] = ()
    route: ModelRoute | None = None
    delivery: Delivery = dataclass_field(default_factory=Delivery, compare=False)

    @property
    def model(self) -> str:
        """Return the model's name, shortened to `MAX_MODEL_NAME` characters; empty if it is missing or no text."""
        name = self.body.get("model")
        if not isinstance(name, str):
            return ""
        return name if len(name) <= MAX_MODEL_NAME else f"{name[: MAX_MODEL_NAME - 1]}…"

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def has_side_effects(self) -> bool:
        """Whether the upstream stores the response, so that it must not be requested twice."""
        return self.api.name == "responses" or bool(self.body.get("store"))

    def with_body(self, body: JsonObject, *tags: str) -> "ApiRequest":
        """Return the request with another body and more tags."""
        control = replace(self.control, tags=(*self.control.tags, *tags))
        return replace(self, body=body, raw=dumps(body), control=control)

    def with_fields(self, fields: JsonMap) -> "ApiRequest":
        """Return the request with more fields, which stay if the fields for the provider's cache are removed."""
        body = {**self.body, **fields}
        unmarked = None if self.unmarked_body is None else {**self.unmarked_body, **fields}
        return replace(self, body=body, raw=dumps(body), unmarked_body=unmarked)

    def with_cache_fields(self, body: JsonObject, *tags: str) -> "ApiRequest":
        """Return the request with a body to which the proxy added fields for the provider's cache; its key stays the same."""
        unmarked = self.body if self.unmarked_body is None else self.unmarked_body
        return replace(self.with_body(body, *tags), unmarked_body=unmarked)

    def without_cache_fields(self) -> "ApiRequest":
        """Return the request without the fields that the proxy added for the provider's cache."""
        if self.unmarked_body is None:
            return self
        tags = tuple(tag for tag in self.control.tags if not tag.startswith(BREAKPOINTS_TAG))
        control, body = replace(self.control, tags=tags), self.unmarked_body
        return replace(self, body=body, raw=dumps(body), control=control, unmarked_body=None)


def requests_sampling(body: JsonMap) -> bool:
    temperature = body.get("temperature")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    return is_number and temperature > 0 and body.get("seed") is None  # type: ignore[operator]


def is_large(size: int) -> bool:
    """Whether work on a body of `size` bytes would block the event loop."""
    return size > _LARGE_BYTES


async def in_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Run `work` on a body of `size` bytes; use a thread if it would block the event loop."""
    if not is_large(size):
        return work()
    import asyncio  # Commands that read requests run no event loop.

    return await asyncio.to_thread(work)


def parse_body(raw: bytes) -> JsonObject:
    try:
        body = loads(raw)
    except ValueError as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    return body


def session_name(request: ApiRequest) -> str | None:
    """Return the session id that a coding agent sends in a header, or else in `metadata.user_id`; None without one."""
    for header in SESSION_HEADERS:
        if name := request.headers.get(header):
            return name[:_MAX_SESSION_NAME]
    user = field(request.body.get("metadata"), "user_id")
    if not isinstance(user, str):
        return None
    if match := _LEGACY_SESSION.search(user):
        return match[1]
    if user.startswith("{"):
        try:
            session = field(loads(user.encode("utf-8", "replace")), "session_id")
        except ValueError:
            return None
        return session[:_MAX_SESSION_NAME] if isinstance(session, str) and session else None
    return None
