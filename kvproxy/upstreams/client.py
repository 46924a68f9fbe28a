"""One OpenAI-compatible server: bytes pass through as they are, in both directions."""

from collections.abc import Mapping

from pydantic import SecretStr

from kvproxy.apis.control import ADMIN_TOKEN, OURS
from kvproxy.apis.json import JsonObject, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.backends.admission import Admission
from kvproxy.backends.protocol import Body, Headers, Relayed
from kvproxy.errors import InvalidRequest, UpstreamError, UpstreamUnreachable
from kvproxy.settings import UpstreamServer, UpstreamSettings
from kvproxy.settings.limits import LimitSettings
from kvproxy.upstreams.connection import Connection, Timeouts, end_to_end

_SPARE = 8
"""Connections for probes, beyond those for requests."""
_KEYS = ("authorization", "x-api-key", "api-key")


class Upstream:
    """Forwards to a URL.

    Args:
        server: its URL and keys.
        settings: timeouts, connections, retries.
        limits: how many requests may wait for a connection.
    """

    def __init__(
        self, server: UpstreamServer, settings: UpstreamSettings, limits: LimitSettings = LimitSettings()
    ) -> None:
        self.url = server.url
        self._server = server
        self._settings = settings
        self._connection = Connection(
            server.url, Timeouts(settings.connect_timeout, settings.read_timeout), settings.max_connections + _SPARE
        )
        self.door = Admission(settings.max_connections, limits.waiting, limits.waiting_seconds)

    def open(self) -> None:
        """Get ready; called on the event loop."""
        self._connection.open()

    async def close(self) -> None:
        """Release the connections."""
        await self._connection.close()

    async def models(self) -> JsonObject:
        """OpenAI's list of models.

        Raises:
            UpstreamError: the upstream cannot be reached, or answers with something else.
        """
        reply = await self.forward("GET", "/v1/models", {}, b"")
        try:
            models = loads(await reply.body())
        except ValueError:
            models = None
        if not isinstance(models, dict):
            raise UpstreamUnreachable(f"the upstream {self.url} answered /v1/models with something else")
        return models

    async def send(self, request: ApiRequest) -> Relayed:
        """Forward a request; returns with the upstream's headers."""
        path = request.api.path + (f"?{request.query}" if request.query else "")
        # The flow reads what passes by, so it must not be compressed.
        headers = {**request.headers, "accept-encoding": "identity", "x-request-id": request.request_id}
        if not self._settings.chain:
            headers.pop("cache-control", None)  # It was for this proxy.
        return await self.forward("POST", path, headers, request.raw)

    async def forward(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> Relayed:
        """Pass any request through untouched; see `Forwarder`.

        Raises:
            InvalidRequest: the path does not begin with a slash.
            Overloaded: too many requests wait for a connection.
            UpstreamError: there was no answer.
        """
        if not path.startswith("/"):
            raise InvalidRequest(f"the path {path[:80]!r} does not begin with a slash")
        await self.door.enter()
        try:
            reply = await self._request(method, path, headers, body)
        except BaseException:
            self.door.leave()
            raise
        reply.when_over.append(self.door.leave)
        return reply

    async def probe(self) -> int:
        """The status that `/health` answers with; it waits for no other request."""
        reply = await self.aside("GET", "/health", {}, b"")
        await reply.close()
        return reply.status

    async def page(self, path: str, most: int) -> bytes | None:
        """A page of its own, which waits for no other request; None where it answers otherwise than with 200.

        Args:
            most: bytes that are read of it.
        """
        reply = await self._request("GET", path, {"accept-encoding": "identity"}, b"")
        read = bytearray()
        try:
            async for chunk in reply.chunks:
                read += chunk
                if len(read) > most:
                    break
        finally:
            await reply.close()
        return bytes(read[:most]) if reply.status == 200 else None

    async def aside(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> Relayed:
        """Ask a question of our own, beside the clients' requests: it waits for none of them. Raises an UpstreamError."""
        return await self._request(method, path, headers, body)

    async def _request(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> Relayed:
        sent = self._headers(headers, path, whole=isinstance(body, bytes))
        # A body that comes in parts is used up by the first try.
        tries = 1 + (self._settings.retries if isinstance(body, bytes) else 0)
        while True:
            tries -= 1
            try:
                return await self._connection.request(method, path, sent, body)
            except UpstreamError as error:
                # A request that never left cannot do anything twice.
                if not error.unsent or tries == 0:
                    raise

    def _headers(self, headers: Mapping[str, str], path: str, *, whole: bool) -> Headers:
        sent = [(name, value) for name, value in end_to_end(headers.items()) if name != ADMIN_TOKEN]
        if not self._settings.chain:
            sent = [(name, value) for name, value in sent if not name.startswith(OURS)]
        if whole:
            sent = [(name, value) for name, value in sent if name != "content-length"]
        return self._with_key(sent, path)

    def _with_key(self, headers: Headers, path: str) -> Headers:
        """Headers with the server's key in place of the client's own, in the header that the client or the API uses."""
        key = secret(self._server.authorization) or secret(self._server.api_key)
        if key is None:
            return headers
        kept = [(name, value) for name, value in headers if name not in _KEYS]
        if self._server.authorization is not None:
            return [*kept, ("authorization", key)]
        given = [name for name in _KEYS if any(name == header for header, _ in headers)]
        name = given[0] if given else "x-api-key" if path.startswith("/v1/messages") else "authorization"
        return [*kept, (name, f"Bearer {key}" if name == "authorization" else key)]


def secret(value: SecretStr | None) -> str | None:
    """What a secret says."""
    return None if value is None else value.get_secret_value()
