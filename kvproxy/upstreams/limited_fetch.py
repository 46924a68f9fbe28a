"""Fetches documents by HTTP for checks and commands, with limits of size and time."""

import base64
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

from kvproxy import __version__

_MAX_BYTES = 8 * 2**20
_STEP = 2**16
_REDIRECTIONS = (301, 302, 303, 307, 308)


class FetchError(Exception):
    """The URL is invalid, or the server sent no whole response within the limits."""


class ResponseTooLarge(FetchError):
    """The response has more than 8 MiB."""


@dataclass(frozen=True, slots=True)
class FetchedResponse:
    """A whole response of any status."""

    status: int
    content: bytes

    def json(self) -> Any:
        """Return the parsed JSON. Raises ValueError."""
        return json.loads(self.content)


def fetch(
    url: str, seconds: float, headers: Mapping[str, str] | None = None, *, follow_redirects: bool = False
) -> FetchedResponse:
    """Send a GET request, and return the whole response.

    `seconds` limits the time until its end, and the time of each step. Raises FetchError, also if the response has more than
    8 MiB. urllib loads ten times faster than httpx, for which the start of a proxy would wait.
    """
    end, body = time.monotonic() + seconds, bytearray()
    with _errors(seconds), _open(url, seconds, headers or {}, follow_redirects) as response:
        while chunk := response.read1(_STEP):
            body += chunk
            if len(body) > _MAX_BYTES:
                raise ResponseTooLarge(f"the response has more than {_MAX_BYTES:,} bytes")
            if time.monotonic() > end:
                raise TimeoutError
        if response.length:
            raise FetchError("the server closed the connection within its response")
        return FetchedResponse(response.status, bytes(body))


@contextmanager
def _errors(seconds: float) -> Iterator[None]:
    try:
        yield
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise FetchError(f"the response did not end within {seconds:g} s") from None
        raise FetchError(str(cause) or type(cause).__name__) from None


class _Redirects(request.HTTPErrorProcessor):
    """Follows redirections, and returns responses of all other statuses."""

    def http_response(self, request: request.Request, response: HTTPResponse) -> HTTPResponse:
        return super().http_response(request, response) if response.status in _REDIRECTIONS else response

    https_response = http_response


def _open(url: str, seconds: float, headers: Mapping[str, str], follow_redirects: bool) -> HTTPResponse:
    parts = urlsplit(url)
    sent = dict(headers)
    if "@" in parts.netloc:
        credentials, _, place = parts.netloc.rpartition("@")
        sent["authorization"] = f"Basic {base64.b64encode(unquote(credentials).encode()).decode()}"
        parts = parts._replace(netloc=place)
    opener = request.OpenerDirector()
    handlers = [
        request.ProxyHandler(),
        request.UnknownHandler(),
        request.HTTPHandler(),
        request.HTTPDefaultErrorHandler(),
    ]
    if parts.scheme.lower() == "https" or follow_redirects:
        handlers.append(request.HTTPSHandler())
    if follow_redirects:
        handlers += request.HTTPRedirectHandler(), _Redirects()
    for handler in handlers:
        opener.add_handler(handler)
    call = request.Request(parts.geturl(), headers={"user-agent": f"kvproxy/{__version__}"})
    for name, value in sent.items():
        # Another server than that of the URL must not receive credentials.
        call.add_unredirected_header(name, value)
    try:
        response = opener.open(call, timeout=seconds)
    except HTTPError as error:
        # A redirection that leads nowhere.
        error.close()
        raise
    assert isinstance(response, HTTPResponse)
    return response


def tls_context(url: str) -> ssl.SSLContext | bool:
    """Return the argument `verify` of httpx. Plain HTTP needs no certificates, which are slow to load."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.lower().startswith("http://") else True
