"""Who asks: a client is known by its key. Requests without one are turned away where there are clients."""

import logging
import time
from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.clients import all_clients, clients_file, digest, is_closed
from kvproxy.errors import SettingsError, TooMany, Unauthorized
from kvproxy.http.access.quotas import Quotas
from kvproxy.http.exchange_middleware import exchange_of
from kvproxy.http.failures import failed
from kvproxy.http.metrics import Metrics
from kvproxy.settings import Settings
from kvproxy.settings.clients import CLIENT, ClientSettings

KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "x-litellm-api-key")
_OWN = ("/health", "/ready", "/metrics", "/admin", "/ui")
_LOOK_SECONDS = 1.0
_log = logging.getLogger("kvproxy")


class Clients:
    """The clients of one proxy; a file that `kvproxy keys` changed is read again within a second."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changed = self._stamp()
        self._looked = time.monotonic()
        self._known = {each.key_sha256: each for each in all_clients(settings)}
        self._closed = is_closed(settings)

    @property
    def any(self) -> bool:
        """Whether there are clients, or were some, so that nobody else may ask.

        A file that is deleted, or whose last client is removed, must not open to everybody what was closed.
        """
        self._follow()
        return self._closed

    def _follow(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked, stamp = now, self._stamp()
        if stamp == self._changed:
            return
        try:
            self._known = {each.key_sha256: each for each in all_clients(self._settings)}
            self._changed = stamp
            if self._closed and not self._known:
                _log.warning("there are no clients any more, so nobody is served: kvproxy keys add NAME makes one")
            self._closed = self._closed or is_closed(self._settings)
        except SettingsError as error:
            _log.error("the clients stay as they were: %s", error)

    def _stamp(self) -> tuple[int, int]:
        """Another one for each content of the file: its time alone may be the same for two that follow each other closely."""
        try:
            status = clients_file(self._settings.data).stat()
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_ino

    def identify(self, headers: Iterable[tuple[str, str]]) -> ClientSettings | None:
        """The client whose key one of the headers holds."""
        for name, value in headers:
            if name in KEY_HEADERS and (client := self._known.get(digest(_key(value)))) is not None:
                return client
        return None

    def stored_bytes(self, tenant: str) -> int | None:
        """Bytes of stored answers that a tenant may have; None where nothing bounds them."""
        if not tenant.startswith(CLIENT):
            return None
        name = tenant.removeprefix(CLIENT)
        return next((client.stored_bytes for client in self._known.values() if client.name == name), None)


def _key(value: str) -> str:
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else value


class ClientGuard:
    """ASGI middleware: identifies the client by its key, removes the key from the request, and enforces the client's quota."""

    def __init__(self, app: ASGIApp, clients: Clients, quotas: Quotas, metrics: Metrics) -> None:
        self._app = app
        self._clients = clients
        self._quotas = quotas
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._clients.any:
            await self._app(scope, receive, send)
            return
        client = self._clients.identify(Request(scope).headers.items())
        if is_own(scope["path"]):
            # The operator's own, who may ask in the name of a client: `explain --api-key`.
            if client is not None:
                _take_key(scope, client)
            await self._app(scope, receive, send)
            return
        if client is None:
            refused = Unauthorized(
                "this proxy needs a key of its own: send Authorization: Bearer KEY (kvproxy keys add)"
            )
            await failed(refused)(scope, receive, send)
            return
        _take_key(scope, client)
        quota = self._quotas.of(client)

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.client(client.name, message["status"])
                if limits := quota.headers():
                    MutableHeaders(scope=message).update(limits)
            await send(message)

        try:
            with quota.request() as account:
                exchange_of(scope).account = account
                await self._app(scope, receive, told)
        except TooMany as error:
            # It comes from the quota: what the app raises has become an answer before it gets here.
            self._metrics.refused(error)
            await failed(error)(scope, receive, told)


def _take_key(scope: Scope, client: ClientSettings) -> None:
    """Note whose request it is, without the key: an upstream has no use for it, and must not learn it."""
    exchange_of(scope).client = client
    own = [name.encode() for name in KEY_HEADERS]
    scope["headers"] = [
        (name, value)
        for name, value in scope["headers"]
        if name not in own or digest(_key(value.decode("latin-1"))) != client.key_sha256
    ]


def is_own(path: str) -> bool:
    """Whether a path belongs to this proxy and its operator. It needs no client's key, and is never forwarded."""
    return path in _OWN or path.startswith(("/admin/", "/ui/"))
