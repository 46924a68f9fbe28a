"""The HTTP client of commands, on urllib: commands would wait for the import of httpx, which takes ten times longer."""

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from typing import Any
from urllib import request
from urllib.error import URLError
from urllib.parse import quote, unquote, urlencode, urlsplit

from kvproxy import __version__

_CONNECT_SECONDS = 3.0
"""Timeout of a connection."""
_CHUNK = 2**16
_URL_CHARACTERS = ":/?#[]@!$&'()*+,;=%~"


class InvalidUrl(Exception):
    """The URL, or a header, cannot be sent."""


class NotConnected(Exception):
    """No server accepted the connection."""


class ConnectionBroken(Exception):
    """The server did not send a complete response, or not in time."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response of any status. The names of its headers are in lower case."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """Return the parsed JSON. Raises ValueError."""
        return json.loads(self.content)


class HttpClient:
    """Sends requests to one server, each on its own connection, and follows no redirection.

    Proxies of the environment are used. Methods raise InvalidUrl, NotConnected, or ConnectionBroken.

    Args:
        base_url: beginning of all URLs, which may contain a user and a password.
        seconds: maximum without received data.
    """

    def __init__(self, base_url: str, seconds: float) -> None:
        self._base_url = base_url
        self._seconds = seconds

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        content: bytes | None = None,
        json: Any = None,
    ) -> Response:
        """Send a request, and return the whole response. A body is `content`, or is `json` in that format."""
        with self._open(method, path, query or {}, headers or {}, content, json) as response:
            return Response(response.status, _headers(response), b"".join(_chunks(response)))

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator[tuple[Response | None, Iterator[bytes]]]:
        """Send a GET request. Yield the response if it is an error, and the chunks of its body otherwise."""
        with self._open("GET", path, {}, headers, None, None) as response:
            if 200 <= response.status < 300:
                yield None, _chunks(response)
            else:
                yield Response(response.status, _headers(response), b"".join(_chunks(response))), iter(())

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        headers: Mapping[str, str],
        content: bytes | None,
        document: Any,
    ) -> Iterator[HTTPResponse]:
        sent = {"user-agent": f"kvproxy/{__version__}", "accept": "*/*"}
        if document is not None:
            content, sent["content-type"] = json.dumps(document).encode(), "application/json"
        elif content is not None:
            sent["content-type"] = "application/octet-stream"
        with _explained_errors():
            url, authorization = _without_credentials(self._base_url + path)
            if query:
                url += ("&" if "?" in url else "?") + urlencode(query)
            call = request.Request(url, content, sent | authorization | dict(headers), method=method)
            response = _opener().open(call, timeout=self._seconds)
            assert isinstance(response, HTTPResponse)
            with response:
                yield response


class _ConnectError(OSError):
    """No connection was made."""


class _QuickConnect(HTTPConnection):
    """A connection whose setup has a timeout of its own."""

    def connect(self) -> None:
        seconds, self.timeout = self.timeout, _CONNECT_SECONDS
        try:
            super().connect()
        except OSError as error:
            raise _ConnectError(str(error)) from error
        assert self.sock is not None
        self.sock.settimeout(seconds)


class _QuickTlsConnect(_QuickConnect, HTTPSConnection):
    pass


class _HttpHandler(request.HTTPHandler):
    def http_open(self, call: request.Request) -> HTTPResponse:
        return self.do_open(_QuickConnect, call)


class _HttpsHandler(request.HTTPSHandler):
    def https_open(self, call: request.Request) -> HTTPResponse:
        return self.do_open(partial(_QuickTlsConnect, context=_tls_context()), call)


def _tls_context() -> Any:
    import ssl

    return ssl.create_default_context()


def _opener() -> request.OpenerDirector:
    opener = request.OpenerDirector()
    for handler in (request.ProxyHandler(), request.UnknownHandler(), _HttpHandler(), _HttpsHandler()):
        opener.add_handler(handler)
    return opener


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without a user and a password, and the header that has them instead."""
    parts = urlsplit(url)
    headers = dict[str, str]()
    if "@" in parts.netloc:
        credentials, _, place = parts.netloc.rpartition("@")
        headers["authorization"] = f"Basic {base64.b64encode(unquote(credentials).encode()).decode()}"
        parts = parts._replace(netloc=place)
    return quote(parts.geturl(), safe=_URL_CHARACTERS), headers


def _headers(response: HTTPResponse) -> dict[str, str]:
    names = {name.lower() for name in response.headers}
    return {name: ", ".join(response.headers.get_all(name, [])) for name in names}


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    while chunk := response.read1(_CHUNK):
        yield chunk
    if response.length:
        raise ConnectionBroken("it ended within the response")


@contextmanager
def _explained_errors() -> Iterator[None]:
    try:
        yield
    except URLError as error:
        if isinstance(error.reason, str):
            raise InvalidUrl(error.reason) from None
        if isinstance(error.reason, _ConnectError):
            raise NotConnected(str(error.reason)) from None
        raise ConnectionBroken(str(error.reason)) from None
    except (InvalidURL, ValueError) as error:
        raise InvalidUrl(str(error)) from None
    except TimeoutError:
        raise ConnectionBroken("it sent nothing in time") from None
    except (OSError, HTTPException) as error:
        raise ConnectionBroken(str(error) or type(error).__name__) from None
