"""Fetches documents by HTTP for checks and commands, with limits of size and time."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssl import SSLContext

    from httpx import Response

_MAX_BYTES = 8 * 2**20


def fetch(
    url: str, seconds: float, headers: Mapping[str, str] | None = None, *, follow_redirects: bool = False
) -> "Response":
    """Send a GET request, and return the whole response.

    `seconds` limits the time until its end, and the time of each step. Raises httpx.HTTPError, also if the response has
    more than 8 MiB, or httpx.InvalidURL.
    """
    import httpx

    end, body = time.monotonic() + seconds, bytearray()
    sent = {"accept-encoding": "identity", **(headers or {})}
    with (
        httpx.Client(timeout=seconds, verify=tls_context(url), follow_redirects=follow_redirects) as client,
        client.stream("GET", url, headers=sent) as response,
    ):
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _MAX_BYTES:
                raise httpx.DecodingError(f"the response has more than {_MAX_BYTES:,} bytes", request=response.request)
            if time.monotonic() > end:
                raise httpx.ReadTimeout(f"the response did not end within {seconds:g} s", request=response.request)
    return httpx.Response(response.status_code, content=bytes(body), request=response.request)


def tls_context(url: str) -> "SSLContext | bool":
    """Return the argument `verify` of httpx. Plain HTTP needs no certificates, which are slow to load."""
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.lower().startswith("http://") else True
