"""Client authentication by API keys. If the proxy has clients, every API request requires a key."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.clients.client_keys import all_clients, check_budgets, key_digest, requires_client_key, set_disabled
from kvproxy.clients.quotas import Quotas
from kvproxy.clients.stored_clients import check_stored, clients_file
from kvproxy.errors import (
    InvalidRequest,
    KeyDisabled,
    KeyDisabledInFlight,
    KeyRemovedInFlight,
    KvproxyError,
    MissingKey,
    NotFound,
    SettingsError,
    StoreUnavailable,
    TooManyRequests,
    Unauthorized,
)
from kvproxy.http.access_rules import AccessRules
from kvproxy.http.error_responses import error_response
from kvproxy.http.exchange_middleware import exchange_of, is_proxy_path
from kvproxy.http.metrics import Metrics
from kvproxy.index.store_location import is_url
from kvproxy.settings import Settings
from kvproxy.settings.access import CLIENT_PREFIX, KEY_HEADERS, ClientSettings

DOCUMENT_PATH = "/openapi.json"
_CHECK_SECONDS = 1.0
_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class _Switch:
    """The state of a client that an operator set, and that is not stored yet."""

    disabled: bool
    operator: str


class Clients:
    """The clients of the settings and of `kvproxy keys`, whose changes take effect without a restart."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shares = is_url(settings.store_location)
        self._changed = 0, *self._clients_file_version()
        self._checked = time.monotonic()
        clients = all_clients(settings)
        check_budgets(settings, clients)
        self._known = _index_by_digest(clients)
        self._teams = _index_teams(clients)
        self._switches: dict[str, _Switch] = {}
        self._closed = bool(self._known) or requires_client_key(settings)

    @property
    def requires_key(self) -> bool:
        now = time.monotonic()
        # With PostgreSQL, the heartbeat reads them in a thread.
        if not self._shares and now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            self.reload()
        return self._closed

    def reload(self, change_number: int = 0) -> None:
        """Reload the clients if their file changed, or if `change_number`, the last change in PostgreSQL, is new."""
        stamp = change_number, *self._clients_file_version()
        if stamp == self._changed:
            return
        try:
            clients = all_clients(self._settings)
            self._known, self._teams = _index_by_digest(clients), _index_teams(clients)
            self._changed = stamp
            for client in clients:
                if client.name in self._switches and self._switches[client.name].disabled == client.disabled:
                    self.end_switch(client.name)
            if self._closed and not self._known:
                _log.warning(
                    "there are no clients any more, so all requests are rejected: add one with kvproxy keys add NAME"
                )
            self._closed = self._closed or requires_client_key(self._settings)
        except (SettingsError, StoreUnavailable) as error:
            _log.error("the clients were not reloaded: %s", error)

    def prepare(self, settings: Settings) -> Settings:
        """Return the used settings with the clients and prices of changed settings. Raises SettingsError or StoreUnavailable."""
        journal = self._settings.journal.model_copy(update={"prices": settings.journal.prices})
        changed = self._settings.model_copy(update={"clients": settings.clients, "journal": journal})
        if changed != self._settings:
            check_budgets(changed, all_clients(changed))
        return changed

    def replace(self, prepared: Settings) -> None:
        """Use settings that `prepare` returned, from the next request, or with PostgreSQL from the next heartbeat."""
        if prepared != self._settings:
            self._settings, self._changed = prepared, (-1, 0, 0)
            self._checked = 0.0

    def switch(self, name: str, operator: str, *, disabled: bool) -> ClientSettings:
        """Disable or enable a client now, until `store_switches` has stored that, and return it.

        Raises NotFound, or InvalidRequest if kvproxy.toml defines it, or if nothing would change.
        """
        client = next((client for client in self.all if client.name == name), None)
        if client is None:
            raise NotFound(f"no client {name!r}: kvproxy keys ls lists them")
        check_stored(self._settings, name)
        if client.disabled == disabled:
            raise InvalidRequest(f"the client {name!r} is {'dis' if disabled else 'en'}abled already")
        self._switches[name] = _Switch(disabled, operator)
        return self.switched(client)

    def end_switch(self, name: str) -> bool:
        """Use the stored state of a client; return whether it was switched."""
        return self._switches.pop(name, None) is not None

    def switched(self, client: ClientSettings) -> ClientSettings:
        switch = self._switches.get(client.name)
        return client if switch is None else client.model_copy(update={"disabled": switch.disabled})

    def store_switches(self) -> None:
        """Store the switched states. A `reload` then ends the switches."""
        for name, switch in [*self._switches.items()]:
            try:
                set_disabled(self._settings, name, disabled=switch.disabled, operator=switch.operator)
            except InvalidRequest:
                continue  # It is stored already.
            except NotFound:
                self.end_switch(name)
            except (SettingsError, StoreUnavailable):
                return

    def _clients_file_version(self) -> tuple[int, int]:
        try:
            status = clients_file(self._settings.data).stat()
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_ino

    def identify(self, headers: Iterable[tuple[str, str]]) -> ClientSettings | None:
        for name, value in headers:
            given = key_digest(_without_bearer(value)) if name in KEY_HEADERS else ""
            client = self._known.get(given)
            if client is not None and client.accepts(given, time.time()):
                return client
        return None

    def find_expired(self, headers: Iterable[tuple[str, str]]) -> ClientSettings | None:
        """Return the client of an expired key in the headers."""
        given = (key_digest(_without_bearer(value)) for name, value in headers if name in KEY_HEADERS)
        return next((self._known[digest] for digest in given if digest in self._known), None)

    @property
    def all(self) -> list[ClientSettings]:
        """All clients, as operators switched them."""
        return [self.switched(client) for client in {client.name: client for client in self._known.values()}.values()]

    @property
    def names(self) -> set[str]:
        return {client.name for client in self._known.values()}

    def with_budget(self) -> list[ClientSettings]:
        """Return the clients with a budget, by name."""
        clients = {client.name: client for client in self._known.values() if client.has_budget}
        return [client for _, client in sorted(clients.items())]

    def why_ended(self, client: ClientSettings) -> str | None:
        """Return what ended the requests in flight of a client: `removed`, `disabled`, or None."""
        if not self.requires_key:
            return None
        known = next((self._known[digest] for digest in client.digests if digest in self._known), None)
        return "removed" if known is None else "disabled" if self.find_disabled(known) is not None else None

    def team_of(self, client: ClientSettings) -> ClientSettings | None:
        return None if client.team is None else self._teams.get(client.team)

    def team_name(self, client: ClientSettings) -> str | None:
        """Return the team whose usage includes the client's requests: a team includes its own."""
        return client.team or (client.name if client.name in self._teams else None)

    def find_disabled(self, client: ClientSettings) -> ClientSettings | None:
        """Return the client or its team, if an operator has disabled it."""
        return next(
            (each for each in (client, self.team_of(client)) if each is not None and self.switched(each).disabled), None
        )

    def knows(self, header: str) -> bool:
        """Whether the value of a header is the key of a client, also an expired one."""
        return key_digest(_without_bearer(header)) in self._known

    def stored_bytes_limit(self, tenant: str) -> int | None:
        if not tenant.startswith(CLIENT_PREFIX):
            return None
        name = tenant.removeprefix(CLIENT_PREFIX)
        return next((client.stored_bytes for client in self._known.values() if client.name == name), None)

    def check(self, client: ClientSettings | None, headers: Mapping[str, str]) -> None:
        """Raise the error of a request with these headers, if it has no key of a client, or the client is disabled."""
        if not self.requires_key:
            return
        if client is None:
            raise self.authentication_error(headers)
        if (disabled := self.find_disabled(client)) is not None:
            raise KeyDisabled(_disabled_message(disabled))

    def authentication_error(self, headers: Mapping[str, str]) -> Unauthorized:
        """Return the error of a request with an expired, an unknown, or no key."""
        keys = [headers[name] for name in KEY_HEADERS if headers.get(name)]
        if (expired := self.find_expired(headers.items())) is not None:
            # A replaced key reached no limit of the client.
            limit = "expires" if expired.has_expired(time.time()) else None
            return Unauthorized(_expiry_message(expired), limit=limit)
        if keys:
            return Unauthorized(
                "this proxy does not know the given API key: check it, or ask the operator for one (kvproxy keys add)"
            )
        return MissingKey(
            "no API key was given: send Authorization: Bearer KEY with a key of this proxy (kvproxy keys add)"
        )


def _expiry_message(client: ClientSettings) -> str:
    """Return the message for a client that has expired, or for its previous key, whose grace period is over."""
    if client.has_expired(time.time()):
        ask = f"ask the operator for a later date (kvproxy keys set {client.name} --expires DATE)"
        return f"the API key of the client {client.name} has expired: {ask}"
    ask = f"use the new key, or ask the operator for another one (kvproxy keys rotate {client.name})"
    return f"the given API key of the client {client.name} was replaced, and has expired: {ask}"


def _disabled_message(client: ClientSettings) -> str:
    return f"the client {client.name} is disabled: ask the operator (kvproxy keys enable {client.name})"


def _index_by_digest(clients: Iterable[ClientSettings]) -> dict[str, ClientSettings]:
    return {digest: client for client in clients for digest in client.digests}


def _index_teams(clients: Collection[ClientSettings]) -> dict[str, ClientSettings]:
    named = {client.team for client in clients}
    return {client.name: client for client in clients if client.name in named}


def _without_bearer(value: str) -> str:
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else value


class ClientGuard:
    """ASGI middleware that authenticates clients, removes their keys from requests, and enforces their quotas.

    The operator reads the OpenAPI document without a key.
    """

    def __init__(self, app: ASGIApp, clients: Clients, quotas: Quotas, metrics: Metrics, access: AccessRules) -> None:
        self._app = app
        self._access = access
        self._clients = clients
        self._quotas = quotas
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._clients.requires_key:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        headers = request.headers
        client = self._clients.identify(headers.items())
        is_document = scope["path"] == DOCUMENT_PATH and request.method in ("GET", "HEAD")
        if client is None and is_document and self._access.check_operator(request) is None:
            await self._app(scope, receive, send)
            return
        if is_proxy_path(scope["path"]):
            # The operator may act for a client: `explain --api-key`.
            if client is not None:
                self._authenticate(scope, client)
            await self._app(scope, receive, send)
            return
        known = client or self._clients.find_expired(headers.items())
        if known is not None:
            self._authenticate(scope, known)
        try:
            self._clients.check(client, headers)
        except KvproxyError as error:
            if known is not None:
                self._metrics.count_client_request(known.name, error.status)
            await self._refuse(error, scope)(scope, receive, send)
            return
        assert client is not None
        quota = self._quotas.get(client, self._clients.team_of(client))

        has_ended = False

        async def labelled(message: Message) -> None:
            nonlocal has_ended
            if message.get("more_body") and not has_ended and (cause := self._clients.why_ended(client)) is not None:
                has_ended = True
                # The response ends with this error, if it is a stream of events, or breaks off.
                if cause == "disabled":
                    raise KeyDisabledInFlight(_disabled_message(self._clients.find_disabled(client) or client))
                raise KeyRemovedInFlight("the API key of this request was removed: ask the operator for another one")
            if message["type"] == "http.response.start":
                self._metrics.count_client_request(client.name, message["status"])
                if limits := quota.headers():
                    MutableHeaders(scope=message).update(limits)
            await send(message)

        try:
            async with quota.admit() as account:
                exchange_of(scope).account = account
                await self._app(scope, receive, labelled)
        except TooManyRequests as error:
            # Raised by the quota. Errors of the app are responses already.
            await self._refuse(error, scope)(scope, receive, labelled)

    def _refuse(self, error: KvproxyError, scope: Scope) -> Response:
        exchange_of(scope).reached_limit = error.reached_limit
        self._metrics.count_error(error)
        return error_response(error, scope)

    def _authenticate(self, scope: Scope, client: ClientSettings) -> None:
        """Remove every key of this proxy, also keys of other clients, which an upstream must not see."""
        exchange = exchange_of(scope)
        exchange.client, exchange.team = client, self._clients.team_name(client)
        scope["headers"] = [
            (name, value)
            for name, value in scope["headers"]
            if name.decode("latin-1") not in KEY_HEADERS or not self._clients.knows(value.decode("latin-1"))
        ]
