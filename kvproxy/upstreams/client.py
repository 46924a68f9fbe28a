import asyncio
from collections.abc import Mapping

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, JsonMap, JsonObject, dumps, loads
from kvproxy.apis.request_directives import HEADER_PREFIX
from kvproxy.backends.admission import Admission
from kvproxy.backends.protocol import Body, Headers, RelayedResponse
from kvproxy.errors import InvalidRequest, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from kvproxy.settings import UpstreamServer, UpstreamSettings
from kvproxy.settings.limits import LimitSettings
from kvproxy.upstreams.connection_pool import ConnectionPool, end_to_end_headers

_PROBE_CONNECTIONS = 8
_KEY_HEADERS = ("authorization", "x-api-key", "api-key")


class UpstreamClient:
    def __init__(
        self, server: UpstreamServer, settings: UpstreamSettings, limits: LimitSettings = LimitSettings()
    ) -> None:
        self.url = server.url
        self._server = server
        self._settings = settings
        limit = settings.max_connections + _PROBE_CONNECTIONS
        self._connections = ConnectionPool(server.url, settings.connect_timeout, settings.read_timeout, limit)
        self.admission = Admission(settings.max_connections, limits.queue_size, limits.queue_seconds)

    def open(self) -> None:
        self._connections.open()

    async def close(self) -> None:
        await self._connections.close()

    async def models(self) -> JsonObject:
        _, models = await self.call_json("GET", "/v1/models")
        if not isinstance(models, dict):
            raise UpstreamUnreachable(f"the response of {self.url}/v1/models is not a JSON object")
        return models

    async def call_json(
        self,
        method: str,
        path: str,
        body: JsonMap | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
        queued: bool = True,
    ) -> tuple[int, Json]:
        """Send a JSON object, and return the status and the parsed response, which is None if it is not JSON.

        `seconds` limits the time until the whole response. A `queued` call waits its turn among clients' requests (see
        `forward`). Raises Overloaded or UpstreamError.
        """
        content = b"" if body is None else dumps(body)
        sent = ({"content-type": "application/json"} if content else {}) | dict(headers or {})
        try:
            async with asyncio.timeout(seconds):
                reply = await (self.forward if queued else self.send_unqueued)(method, path, sent, content)
                data = await reply.body()
        except TimeoutError:
            where = self.url + path.partition("?")[0]
            raise UpstreamTimeout(f"{where} did not respond within {seconds:g} s") from None
        try:
            return reply.status, loads(data)
        except ValueError:
            return reply.status, None

    async def send(self, request: ApiRequest) -> RelayedResponse:
        path = request.api.path + (f"?{request.query}" if request.query else "")
        # The flow parses the response, so it must not be compressed.
        headers = {**request.headers, "accept-encoding": "identity", "x-request-id": request.request_id}
        headers.pop("cache-control", None)  # It addresses this proxy.
        return await self.forward("POST", path, headers, request.raw)

    async def forward(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> RelayedResponse:
        """Queue and send a client's request. Raises InvalidRequest, Overloaded, or UpstreamError."""
        if not path.startswith("/"):
            raise InvalidRequest(f"the path {path[:80]!r} does not begin with a slash")
        await self.admission.enter()
        try:
            reply = await self.send_unqueued(method, path, headers, body)
        except BaseException:
            self.admission.leave()
            raise
        reply.on_end.callback(self.admission.leave)
        return reply

    async def send_unqueued(
        self, method: str, path: str, headers: Mapping[str, str], body: Body = b""
    ) -> RelayedResponse:
        """Send a request without the queue of client requests. Raises UpstreamError."""
        sent = self._headers(headers, path, omits_length=isinstance(body, bytes))
        # A streamed body cannot be sent twice.
        retries = self._settings.retries if isinstance(body, bytes) else 0
        while True:
            try:
                return await self._connections.request(method, path, sent, body)
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
        secret = self._server.authorization or self._server.api_key
        if secret is None:
            return headers
        key = secret.get_secret_value()
        others = [(name, value) for name, value in headers if name not in _KEY_HEADERS]
        if self._server.authorization is not None:
            return [*others, ("authorization", key)]
        default = "x-api-key" if path.startswith("/v1/messages") else "authorization"
        sent = {name for name, _ in headers}
        header = next((name for name in _KEY_HEADERS if name in sent), default)
        return [*others, (header, f"Bearer {key}" if header == "authorization" else key)]
