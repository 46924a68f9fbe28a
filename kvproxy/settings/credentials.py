import base64
from typing import Annotated
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import BeforeValidator, SecretStr


def _clean_key(value: object) -> object:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if not isinstance(value, str):
        return value
    value = value.strip()
    if not (value.isascii() and value.isprintable()):
        raise ValueError("a key or token may contain visible ASCII characters only")
    return value or None


SecretKey = Annotated[SecretStr | None, BeforeValidator(_clean_key)]
PlainKey = Annotated[str | None, BeforeValidator(_clean_key)]
"""An optional key as text. Fields of this type require `repr=False`, to keep the key out of logs."""


def parse_upstream_url(text: str) -> dict[str, str]:
    """Split an upstream's URL into `url`, without a trailing slash or `/v1`, and credentials.

    Credentials are `api_key` (a user name without a password), or `authorization` (the header for `user:password`).
    Raises ValueError, whose message contains no credentials.
    """
    shown = _without_secrets(text)
    if "://" not in text:
        raise ValueError(f"{shown} has no scheme: write http://{shown}")
    try:
        parts = urlsplit(text.strip())
        has_late_at = "@" in parts.path + parts.query + parts.fragment
        port = None if has_late_at else parts.port
    except ValueError:
        # The reason may quote a part of a password.
        raise ValueError(f"{shown} is not a URL: use a form such as http://127.0.0.1:8000") from None
    if has_late_at:
        raise ValueError(f"{shown} has an @ after its host: write / in a password as %2F, ? as %3F, # as %23, @ as %40")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{shown} has the scheme {parts.scheme}: use http:// or https://")
    if not parts.hostname or port == 0 or any(letter.isspace() for letter in parts.netloc):
        raise ValueError(f"{shown} has no host: use a form such as http://127.0.0.1:8000")
    if parts.query or parts.fragment:
        raise ValueError(f"{shown} must end after its path: remove the part after ? or #, and give a key as api_key")
    return _split_credentials(parts)


def _split_credentials(parts: SplitResult) -> dict[str, str]:
    credentials, _, host = parts.netloc.rpartition("@")
    url = parts._replace(netloc=host).geturl().rstrip("/").removesuffix("/v1")
    if not credentials.strip(":"):
        return {"url": url}
    if ":" not in credentials:
        return {"url": url, "api_key": unquote(credentials)}
    # RFC 7617: the password begins after the first colon.
    encoded = base64.b64encode(unquote(credentials).encode()).decode()
    return {"url": url, "authorization": f"Basic {encoded}"}


def _without_secrets(text: str) -> str:
    scheme, found, rest = text.strip().rpartition("://") if "://" in text else ("", "", text.strip())
    # A password may contain ? and #, so remove the credentials first.
    rest = rest.rpartition("@")[2]
    return f"{scheme}{found}{rest.partition('?')[0].partition('#')[0]}"
