"""Sends requests to one upstream."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import ApiRequest, Delivery, in_thread_if_large
from kvproxy.apis.json import Json, JsonMap, JsonObject, dumps, loads
from kvproxy.apis.request_directives import HEADER_PREFIX
from kvproxy.apis.stream_usage import body_with_usage, lacks_usage
from kvproxy.backends.admission import Admission
from kvproxy.backends.protocol import Body, Headers, RelayedResponse
from kvproxy.errors import (
    InvalidRequest,
    SettingsError,
    UpstreamError,
    UpstreamKeyRefused,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from kvproxy.settings import UpstreamServer, UpstreamSettings
from kvproxy.settings.limits import LimitSettings
from kvproxy.upstreams.connection_pool import ConnectionPool, end_to_end_headers

_PROBE_CONNECTIONS = 8
_MODELS_SECONDS = 5.0
_MAX_CALL_BYTES = 8 * 2**20
# A token of one byte may become a number and a separator.
_RESPONSE_RATIO = 16
_INVALID = (400, 422)
_KEY_HEADERS = ("authorization", "x-api-key", "api-key")
# The API of OpenAI answers 401, too, if its key is not one of the organization or the project that a client names.
_ACCOUNT_HEADERS = ("openai-organization", "openai-project")
_log = logging.getLogger("kvproxy")


class UpstreamClient:
    """Raises SettingsError if the API key cannot be read."""

    def __init__(
        self, server: UpstreamServer, settings: UpstreamSettings, limits: LimitSettings = LimitSettings()
    ) -> None:
        self.url = server.url
        self.sent = 0
        """Number of clients' requests that it received; one counts when its response begins or fails, or its client leaves."""
        self._server = server
        self._credentials = server.authorization_or_key()
        self._key_failure: str | None = None
        self._has_logged_refusal = False
        self.on_new_key: Callable[[], object] = lambda: None
        self._settings = settings
        limit = settings.max_connections + _PROBE_CONNECTIONS
        read_timeout = server.read_timeout or settings.read_timeout
        self._connections = ConnectionPool(server.url, settings.connect_timeout, read_timeout, limit)
        self._set_timeouts()
        self.keeps_connections = True
        """Whether connections are reused after requests of clients."""
        self._refuse_usage: set[ApiName] = set()
        self.admission = Admission(settings.max_connections, limits.queue_size, limits.queue_seconds)

    def _set_timeouts(self) -> None:
        server, settings = self._server, self._settings
        self.first_byte_timeout = server.first_byte_timeout or settings.first_byte_timeout
        """Maximum seconds until the first byte of a response to a cached API; None for the timeout between chunks."""
        read_timeout = server.read_timeout or settings.read_timeout
        first = max(read_timeout, self.first_byte_timeout or 0)
        self._connections.set_timeouts(settings.connect_timeout, read_timeout, first)

    def reload(
        self, server: UpstreamServer, settings: UpstreamSettings, credentials: tuple[str | None, str | None]
    ) -> None:
        """Use changed settings for new requests. `UpstreamServer.authorization_or_key` returns the `credentials`."""
        self._server, self._settings = server, settings
        self._use_credentials(credentials)
        self._set_timeouts()

    async def reload_key_file(self) -> None:
        """Use the key of a changed `api_key_file`. While the file has no key, the last key stays."""
        server = self._server
        if server.api_key_file is None:
            return
        try:
            credentials = await asyncio.to_thread(server.authorization_or_key)
        except SettingsError as error:
            if self._key_failure is None:
                _log.error("the last API key of %s is still in use: %s", self.url, error.message)
            self._key_failure = error.message
            return
        # The settings may have changed meanwhile.
        if server is self._server:
            self._use_credentials(credentials)

    def _use_credentials(self, credentials: tuple[str | None, str | None]) -> None:
        self._key_failure = None
        if credentials != self._credentials:
            self._credentials = credentials
            self._has_logged_refusal = False
            _log.info("the upstream %s has another API key", self.url)
            self.on_new_key()

    def open(self) -> None:
        self._connections.open()

    async def close(self) -> None:
        await self._connections.close()

    async def models(self, headers: Mapping[str, str] | None = None) -> JsonObject:
        _, models = await self.list_models("", headers)
        return models

    async def list_models(self, query: str, headers: Mapping[str, str] | None = None) -> tuple[int, JsonObject]:
        """Return the status and the body of the list of models, which may be an error."""
        path = f"/v1/models?{query}" if query else "/v1/models"
        status, models = await self.call_json("GET", path, headers=headers, seconds=_MODELS_SECONDS)
        if self._is_key_refused(status, headers or {}):
            raise self._key_refusal()
        if not isinstance(models, dict):
            raise UpstreamUnreachable(f"the response of {self.url}/v1/models is not a JSON object")
        return status, models

    async def call_json(
        self,
        method: str,
        path: str,
        body: JsonMap | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float,
        queued: bool = True,
    ) -> tuple[int, Json]:
        """Call with a JSON object, and parse the response, which is None if it is not JSON; see `call`."""
        content = b"" if body is None else dumps(body)
        sent = ({"content-type": "application/json"} if content else {}) | dict(headers or {})
        status, data = await self.call(method, path, content, sent, seconds=seconds, queued=queued)
        try:
            return status, await in_thread_if_large(len(data), lambda: loads(data))
        except ValueError:
            return status, None

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float,
        queued: bool = False,
    ) -> tuple[int, bytes]:
        """Send a request of the proxy itself, and return the status and the whole response.

        `seconds` limits the time until the end of the response. Its size is limited to 8 MiB, and 16 times the size of the
        request. A `queued` call waits its turn among clients' requests (see `forward`). Raises Overloaded or UpstreamError.
        """
        limit = _MAX_CALL_BYTES + _RESPONSE_RATIO * len(body)
        sent = {"accept-encoding": "identity", **(headers or {})}
        url = self.url + path.partition("?")[0]
        data = bytearray()
        try:
            async with asyncio.timeout(seconds):
                reply = await (self._enqueue if queued else self.send_unqueued)(method, path, sent, body)
                try:
                    async for chunk in reply.chunks:
                        data += chunk
                        if len(data) > limit:
                            raise UpstreamProtocolError(f"{url} sent more than {limit:,} bytes")
                finally:
                    await reply.close()
        except TimeoutError:
            raise UpstreamTimeout(f"{url} did not respond within {seconds:g} s") from None
        return reply.status, bytes(data)

    async def probe(self, path: str, *, seconds: float) -> int:
        """Send a GET request without the queue, and return the status without reading the body. Raises UpstreamError."""
        try:
            async with asyncio.timeout(seconds):
                reply = await self.send_unqueued("GET", path, {})
                await reply.close()
        except TimeoutError:
            raise UpstreamTimeout(f"{path} did not respond within {seconds:g} s") from None
        return reply.status

    async def send(self, request: ApiRequest) -> RelayedResponse:
        path = (request.path or request.api.path) + (f"?{request.query}" if request.query else "")
        # The flow parses the response, so it must not be compressed.
        headers = {**request.headers, "accept-encoding": "identity", "x-request-id": request.request_id}
        headers.pop("cache-control", None)  # It addresses this proxy.
        api = request.api.name
        if not self._settings.request_usage or api in self._refuse_usage or not lacks_usage(request):
            return await self.forward("POST", path, headers, request.raw, delivery=request.delivery)
        reply = await self.forward("POST", path, headers, body_with_usage(request), delivery=request.delivery)
        if reply.status not in _INVALID:
            reply.has_unrequested_usage = True
            return reply
        # The request is invalid, or the server does not know the field.
        await reply.close()
        reply = await self.forward("POST", path, headers, request.raw, delivery=request.delivery)
        if reply.status not in _INVALID:
            self._refuse_usage.add(api)
        return reply

    async def forward(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body,
        tenant: str | None = None,
        *,
        delivery: Delivery | None = None,
    ) -> RelayedResponse:
        """Queue and send a client's request. Raises InvalidRequest, Overloaded, or UpstreamError.

        A request whose key was refused is sent again if `api_key_file` has another key.

        `delivery` records that this upstream received it.
        """
        while True:
            used = self._credentials
            reply = await self._deliver(method, path, headers, body, delivery or Delivery())
            if not self._is_key_refused(reply.status, headers):
                return reply
            await reply.close()
            if used == self._credentials:
                await self.reload_key_file()
            if used == self._credentials or not isinstance(body, bytes):
                raise self._key_refusal()
            self.sent -= 1

    def _is_key_refused(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether an answer refuses the key of the settings. A refused key of a client is the client's concern."""
        has_key = self._credentials != (None, None)
        return status == 401 and has_key and not any(name in headers for name in _ACCOUNT_HEADERS)

    def _key_refusal(self) -> UpstreamKeyRefused:
        error = UpstreamKeyRefused(
            f"{self.url} refuses the key that kvproxy has for it (401), not the key of the client"
        )
        if not self._has_logged_refusal:
            self._has_logged_refusal = True
            _log.warning("the upstream %s refuses its API key (401): replace the key in the settings", self.url)
        return error

    async def _deliver(
        self, method: str, path: str, headers: Mapping[str, str], body: Body, delivery: Delivery
    ) -> RelayedResponse:
        delivery.received_at = None
        try:
            reply = await self._enqueue(method, path, headers, body, partial(delivery.record, self.url))
        except UpstreamError as error:
            self.sent += not error.unsent
            raise
        except asyncio.CancelledError:
            self.sent += delivery.received_at is not None
            raise
        self.sent += 1
        return reply

    async def _enqueue(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body,
        on_written: Callable[[], object] | None = None,
    ) -> RelayedResponse:
        if not path.startswith("/"):
            raise InvalidRequest(f"the path {path[:80]!r} does not begin with a slash")
        await self.admission.enter()
        try:
            closes = not self.keeps_connections
            reply = await self.send_unqueued(method, path, headers, body, closes=closes, on_written=on_written)
        except BaseException:
            self.admission.leave()
            raise
        reply.on_end.add(self.admission.leave)
        return reply

    async def send_unqueued(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body = b"",
        *,
        closes: bool = False,
        on_written: Callable[[], object] | None = None,
    ) -> RelayedResponse:
        """Send a request without the queue of client requests. Raises UpstreamError.

        `closes` asks the server to close the connection after its response.
        """
        sent = self._headers(headers, path, omits_length=isinstance(body, bytes))
        if closes:
            sent.append(("connection", "close"))
        # A streamed body cannot be sent twice.
        retries = self._settings.retries if isinstance(body, bytes) else 0
        while True:
            try:
                return await self._connections.request(method, path, sent, body, on_written)
            except UpstreamError as error:
                if not error.unsent or retries == 0:
                    raise
                retries -= 1

    def _headers(self, headers: Mapping[str, str], path: str, *, omits_length: bool) -> Headers:
        sent = [
            (name, value)
            for name, value in end_to_end_headers(headers.items())
            if not name.startswith(HEADER_PREFIX) and not (omits_length and name == "content-length")
        ]
        return self._with_api_key(sent, path)

    def _with_api_key(self, headers: Headers, path: str) -> Headers:
        authorization, key = self._credentials
        if authorization is None and key is None:
            return headers
        others = [(name, value) for name, value in headers if name not in _KEY_HEADERS]
        if key is None:
            return [*others, ("authorization", authorization or "")]
        default = "x-api-key" if path.startswith(("/v1/messages", "/messages")) else "authorization"
        sent = {name for name, _ in headers}
        header = next((name for name in _KEY_HEADERS if name in sent), default)
        return [*others, (header, f"Bearer {key}" if header == "authorization" else key)]
