"""Checks the URL of an upstream, and takes the credentials out of it."""

import base64
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit


@dataclass(frozen=True, slots=True)
class UpstreamUrl:
    """An upstream's URL, and the credentials that were written into it.

    Attributes:
        url: scheme, host, port and path; no credentials, no slash and no `/v1` at the end.
        api_key: what stood before the `@` without a colon, or None.
        authorization: a whole `Authorization` header for `user:password`, or None.
    """

    url: str
    api_key: str | None = None
    authorization: str | None = None


def read_url(text: str) -> UpstreamUrl:
    """Read what a user gave as the URL of an upstream.

    Raises:
        ValueError: it is no URL that requests can be sent to. The message names the fix and holds no credentials.
    """
    shown = without_secrets(text)
    if "://" not in text:
        raise ValueError(f"{shown} has no scheme: write http://{shown}")
    try:
        parts = urlsplit(text.strip())
        odd = "@" in parts.path + parts.query + parts.fragment
        port = None if odd else parts.port
    except ValueError:
        # The reason may quote a part of a password.
        raise ValueError(f"{shown} is no URL: write one such as http://127.0.0.1:8000") from None
    if odd:
        raise ValueError(f"{shown} has an @ after its host: write / in a password as %2F, ? as %3F, # as %23, @ as %40")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{shown} begins with {parts.scheme}://: an upstream speaks http:// or https://")
    if not parts.hostname or port == 0 or any(letter.isspace() for letter in parts.netloc):
        raise ValueError(f"{shown} names no host: write one such as http://127.0.0.1:8000")
    if parts.query or parts.fragment:
        raise ValueError(f"{shown} must end after its path: leave out what follows ? or #, and give a key as api_key")
    return _taken_apart(parts)


def _taken_apart(parts: SplitResult) -> UpstreamUrl:
    credentials, _, host = parts.netloc.rpartition("@")
    url = parts._replace(netloc=host).geturl().rstrip("/").removesuffix("/v1")
    if not credentials.strip(":"):
        return UpstreamUrl(url)
    if ":" not in credentials:
        return UpstreamUrl(url, api_key=unquote(credentials))
    # RFC 7617: the password begins after the first colon.
    encoded = base64.b64encode(unquote(credentials).encode()).decode()
    return UpstreamUrl(url, authorization=f"Basic {encoded}")


def without_secrets(text: str) -> str:
    """A URL, or what was meant as one, for a message: no credentials and no query."""
    scheme, found, rest = text.strip().rpartition("://") if "://" in text else ("", "", text.strip())
    # A password may hold ? and #, so the credentials go first.
    rest = rest.rpartition("@")[2]
    return f"{scheme}{found}{rest.partition('?')[0].partition('#')[0]}"
