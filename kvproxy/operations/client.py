"""The HTTP client of a proxy's operator, and which proxy commands use."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote, urlsplit

from kvproxy.errors import (
    InvalidRequest,
    KvproxyError,
    NoPrefixCache,
    NotFound,
    ProxyUnreachable,
    SettingsError,
    Unauthorized,
)
from kvproxy.operations.parameters import declared_parameters

if TYPE_CHECKING:
    from kvproxy.operations.http_client import HttpClient, Response
    from kvproxy.operations.operation import DeclaredOperation, Parameters, Result
    from kvproxy.settings import Settings

_OWN_ROUTES = ("/admin/", "/health", "/ready", "/metrics")
_TOKEN_FILE = "KVPROXY_ADMIN_TOKEN_FILE"
_LOCAL_CONNECT_SECONDS = 3.0
"""Timeout of a connection to a port of this machine."""


class ProxyClient:
    """HTTP client of a proxy. `token` is the admin token, and `timeout` the maximum seconds without received data."""

    def __init__(self, url: str, token: str | None = None, timeout: float = 600.0) -> None:
        self.url = url.rstrip("/")
        self._last_use = url.last_use if isinstance(url, ConfiguredUrl) else None
        self.token = token
        self._timeout = timeout

    @cached_property
    def _client(self) -> "HttpClient":
        from kvproxy.operations.http_client import HttpClient

        return HttpClient(self.url, self._timeout)

    @property
    def token_headers(self) -> dict[str, str]:
        """The header with the admin token, for admin routes only; empty without a token."""
        if not self.token:
            return {}
        from kvproxy.installation.checks.servers import ADMIN_TOKEN_HEADER

        return {ADMIN_TOKEN_HEADER: self.token}

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        """Send a GET request, and return the parsed JSON. Query parameters that are None are omitted."""
        return self._json(self._send("GET", path, query, headers=headers))

    def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        """Send a POST request, and return the parsed JSON. A body of bytes is sent unchanged, and another body as JSON."""
        return self._json(self._send("POST", path, query, headers=headers, **_content(body)))

    def send(self, path: str, body: Any, *, headers: Mapping[str, str]) -> "tuple[Response, Any]":
        """Send a POST request with JSON. Return the response, also of an error, and its JSON; None for an error without."""
        with self._explained_errors():
            response = self._client.request("POST", path, {}, dict(headers), json=body)
        try:
            return response, response.json()
        except ValueError:
            if response.is_success:
                raise self._not_a_proxy_error() from None
            return response, None

    def delete(self, path: str, **query: Any) -> Any:
        return self._json(self._send("DELETE", path, query))

    def perform(
        self,
        operation: "DeclaredOperation[Parameters, Result]",
        parameters: "Parameters",
        body: object = None,
        /,
        headers: Mapping[str, str] | None = None,
    ) -> "Result":
        """Perform an operation by its route. Raises InvalidRequest for a parameter that the route does not accept."""
        from pydantic import TypeAdapter, ValidationError

        from kvproxy.operations.operation import CountedRows

        given = {
            parameter.name: getattr(parameters, parameter.name)
            for parameter in declared_parameters(operation.parameters)
        }
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        if unknown := given.keys() - {parameter.name for parameter in operation.remote_parameters}:
            raise InvalidRequest(
                f"{', '.join(unknown)} is not available over HTTP: run the command beside the proxy's files"
            )
        if empty := next((name for name in operation.path_names if given[name] == ""), None):
            raise InvalidRequest(f"{empty} is empty: give one")
        segments = {name: quote_path_segment(str(given.pop(name))) for name in operation.path_names}
        path = "/admin" + operation.path.replace(":path}", "}").format(**segments)
        query = {name: "true" if value is True else value for name, value in given.items()}
        response = self._send(operation.method, path, query, headers, **_content(body))
        try:
            result = TypeAdapter(operation.json_type).validate_python(self._json(response))
            if operation.is_counted:
                result = CountedRows(result, int(response.headers["x-total-count"]))
            return cast("Result", result)
        except ValidationError as error:
            if names := [str(getattr(parameters, name)) for name in operation.path_names]:
                # The name may be that of another route, such as stats.
                raise NotFound(f"the proxy at {self.url} has no {names[0][:80]!r}, or another version") from None
            place = ".".join(map(str, error.errors()[0]["loc"]))
            raise KvproxyError(
                f"the response of {self.url} has an unknown form ({place}): use the same version of kvproxy here and there"
            ) from None

    def get_text(self, path: str) -> str:
        return str(self._send("GET", path, {}).text)

    def export_responses(self) -> Iterator[bytes]:
        """Stream an export (JSON lines) in chunks, which may end within a line."""
        path = "/admin/cache/export"
        with self._explained_errors(), self._client.stream(path, self.token_headers) as (refusal, chunks):
            if refusal is not None:
                raise response_error(refusal)
            yield from chunks

    def models(self, headers: Mapping[str, str] | None = None) -> list[str]:
        """Return the ids of the listed models; an empty list if the server lists them in another form."""
        listed = self.get("/v1/models", headers=headers)
        try:
            return [str(model["id"]) for model in listed["data"]]
        except (KeyError, TypeError):
            return []

    def first_model(self, headers: Mapping[str, str] | None = None) -> str:
        try:
            models = self.models(headers)
        except KvproxyError as error:
            if error.status >= 500 and not isinstance(error, ProxyUnreachable):
                error.message += "; a stored response needs no upstream: name its model with --model"
            raise
        if not models:
            raise NotFound(f"{self.url} lists no model: name one with --model")
        return models[0]

    def tenant(self, headers: Mapping[str, str], model: str) -> str:
        """Return the tenant of requests to `model` with these headers."""
        body = {"model": model, "messages": [{"role": "user", "content": "?"}]}
        explanation = self.post("/admin/explain", body, headers=headers)
        if not isinstance(explanation, dict) or "tenant" not in explanation:
            raise self._not_a_proxy_error()
        return str(explanation["tenant"])

    def is_reachable(self) -> bool:
        return self.health() is not None

    def health(self) -> dict[str, Any] | None:
        """Return the document of /health, which has details for operators only; None if no proxy answers."""
        if not _is_open_or_remote(self.url):
            return None
        try:
            with self._explained_errors():
                health = self._client.request("GET", "/health", headers=self.token_headers).json()
        except (ProxyUnreachable, ValueError):
            return None
        return health if isinstance(health, dict) and "version" in health else None

    def _send(
        self, method: str, path: str, query: Mapping[str, Any], headers: Mapping[str, str] | None = None, **content: Any
    ) -> "Response":
        # Other routes may lead to an upstream, which must not see the token.
        headers = dict(headers or {}) | (self.token_headers if path.startswith(_OWN_ROUTES) else {})
        given = {name: value for name, value in query.items() if value is not None}
        with self._explained_errors():
            response = self._client.request(method, path, given, headers, **content)
        if not response.is_success:
            is_foreign = response.status_code == 404 and path.startswith(_OWN_ROUTES) and '"error"' not in response.text
            raise self._not_a_proxy_error() if is_foreign else response_error(response)
        return response

    def _json(self, response: "Response") -> Any:
        try:
            return response.json()
        except ValueError:
            raise self._not_a_proxy_error() from None

    def _not_a_proxy_error(self) -> KvproxyError:
        return KvproxyError(f"the server at {self.url} is not a kvproxy: correct --url")

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        from kvproxy.operations.http_client import ConnectionBroken, InvalidUrl, NotConnected

        try:
            yield
        except InvalidUrl as error:
            raise InvalidRequest(f"{self.url} is not a URL ({error}): use a form like http://127.0.0.1:8484") from None
        except NotConnected:
            missing = f"no proxy answers at {self.url}"
            if self._last_use is not None:
                missing = f"no proxy runs for {self._last_use}, and none answers at {self.url}"
            raise ProxyUnreachable(f"{missing}: start one with 'kvproxy serve', or give --url") from None
        except ConnectionBroken as error:
            raise ProxyUnreachable(f"the proxy at {self.url} broke the connection ({error}): see its log") from None


def _content(body: object) -> dict[str, Any]:
    if body is None or isinstance(body, bytes):
        return {"content": body}
    return {"json": asdict(body) if is_dataclass(body) and not isinstance(body, type) else body}


def _is_open_or_remote(url: str) -> bool:
    """Return False for a closed port of this machine, without the slow import of an HTTP client."""
    try:
        parts = urlsplit(url)
        if parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            return True
        socket.create_connection((parts.hostname, parts.port or 80), _LOCAL_CONNECT_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError):
        pass
    return True


class ConfiguredUrl(str):
    """The URL of `configured_url`, which no user named.

    Attributes:
        folder: the data folder of the settings, if they name it and no proxy of this machine has locked it. A proxy of another
            folder may answer at the URL then.
        last_use: the data folder and the URL of its last proxy, as a text, if no proxy of this machine has locked the folder,
            and the last one had another URL.
    """

    folder: Path | None = None
    last_use: str | None = None


def configured_url(data: Path | None = None) -> ConfiguredUrl:
    """Return the URL of the proxy that uses a data folder; without a proxy, the URL in its settings. Raises SettingsError."""
    from kvproxy.installation.data_folder import last_proxy_url, running_proxy_url
    from kvproxy.settings import load_settings

    settings = load_settings(data=data)
    url = ConfiguredUrl(_url_of(settings))
    if running_proxy_url(settings.data) is None:
        url.folder = settings.data if names_folder(settings) else None
        last = last_proxy_url(settings.data)
        if last not in (None, url):
            url.last_use = f"the data folder {settings.data}, whose last proxy was at {last}"
    return url


def client_of_proxy(url: str, token: str | None, timeout: float = 600.0) -> ProxyClient:
    """Return a client of the proxy at the URL. Raises ProxyUnreachable for a `ConfiguredUrl` if it has another data folder."""
    client = ProxyClient(url, token, timeout)
    if isinstance(url, ConfiguredUrl) and url.folder is not None:
        used = (client.health() or {}).get("data")
        if used is not None and not _is_same_path(used, url.folder):
            raise ProxyUnreachable(
                f"no proxy uses the data folder {url.folder}: the proxy at {client.url} uses {used}; start one with"
                " 'kvproxy serve', or give --url"
            )
    return client


def client_of_running_proxy(url: str, token: str | None) -> ProxyClient | None:
    """Return a client of the proxy at the URL; None if no proxy answers at `configured_url`. Raises ProxyUnreachable."""
    client = ProxyClient(url, token)
    if client.is_reachable():
        return client
    if url != configured_url():
        raise ProxyUnreachable(f"no proxy answers at {url}: start one, or leave out --url to read its files")
    return None


def client_of_store(url: str, token: str | None, settings: "Settings") -> ProxyClient | None:
    """Return a client of the proxy that uses the stored responses of the settings; None if no proxy does.

    A proxy at a URL that a user named, or at the URL of settings that name neither a data folder nor a store, counts as that
    proxy. Raises ProxyUnreachable.
    """
    if not isinstance(url, ConfiguredUrl) or not settings.model_fields_set & {"data", "store"}:
        return client_of_running_proxy(url, token)
    from kvproxy.installation.checks.configured_store import store_name

    client = ProxyClient(url, token)
    health = client.health()
    if health is None or not _is_same_path(health.get("data", settings.data), settings.data):
        return None
    return client if health.get("responses") == store_name(settings) else None


def names_folder(settings: "Settings") -> bool:
    """Return whether a flag, a variable, or kvproxy.toml names the data folder: no proxy of another folder may be used."""
    return "data" in settings.model_fields_set


def _is_same_path(one: str | Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def used_data_folder(data: Path | None) -> Path | None:
    """Return the named data folder. Without a name, return the folder of the running proxy at the configured URL.

    None means the folder of the settings. Raises InvalidRequest if the proxy uses a folder of another machine, or hides it.
    """
    from kvproxy.installation.data_folder import running_proxy_url
    from kvproxy.settings import load_settings

    settings = load_settings(data=data)
    if names_folder(settings):
        return data
    url = os.environ.get("KVPROXY_URL") or configured_url()
    client = ProxyClient(url, configured_token(url))
    if url == running_proxy_url(settings.data) or not client.is_reachable():
        return None
    folder = client.get("/health").get("data")
    if folder is None or running_proxy_url(Path(folder)) is None:
        place = "does not tell its data folder" if folder is None else f"uses {folder} on another machine"
        raise InvalidRequest(f"the proxy at {url} {place}: give --data, {settings.data} is the default")
    return None if Path(folder) == settings.data else Path(folder)


def configured_token(url: str, data: Path | None = None) -> str | None:
    """Return the admin token in the settings of a data folder; None if `url` is not its `configured_url`.

    As for the variable of the token itself, the URL does not matter for the variable with its file.
    """
    from kvproxy.settings import load_settings

    with suppress(SettingsError):
        settings = load_settings(data=data)
        if settings.admin_token is not None and (_TOKEN_FILE in os.environ or url.rstrip("/") == _url_of(settings)):
            return settings.admin_token
    return None


def _url_of(settings: "Settings") -> str:
    from kvproxy.installation.data_folder import demo_folder, running_proxy_url

    # Flags of `kvproxy serve` may have changed the address.
    url = running_proxy_url(settings.data)
    if url is None and not names_folder(settings):
        url = running_proxy_url(demo_folder(settings.data))
    if url is not None:
        return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    if settings.port == 0:
        raise SettingsError("the setting port is 0, which means any free port: give --url", param="port")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def quote_path_segment(name: str) -> str:
    return quote(name, safe="")


class AnyResponse(Protocol):
    """A response of `http_client`, or of httpx."""

    @property
    def status_code(self) -> int: ...

    @property
    def text(self) -> str: ...

    def json(self) -> Any: ...


def response_error(response: AnyResponse) -> KvproxyError:
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code}: {response.text[:200]}"
    kinds: dict[int, type[KvproxyError]] = {
        400: InvalidRequest,
        401: Unauthorized,
        404: NotFound,
        409: NoPrefixCache,
    }
    return kinds.get(response.status_code, KvproxyError)(message)
