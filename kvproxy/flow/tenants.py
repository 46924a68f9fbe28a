"""Determines the tenant of a request: the authenticated client, and one of its users by their headers, cookies, or claim.

A cookie that the upstream has set in an answer to a tenant is no identity: load balancers set one for each client. A claim of
a JSON Web Token (RFC 7519) identifies a user only after the upstream has accepted this token, because the proxy does not verify
its signature.
"""

import base64
import binascii
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from kvproxy.apis.api_request import PUBLIC_TENANT
from kvproxy.apis.json import Json, dumps, field, loads
from kvproxy.exchange import Exchange
from kvproxy.settings.access import KEY_HEADERS, LOAD_BALANCER_COOKIES, TENANT_HEADERS, AccessSettings

_MAX_REMEMBERED = 65_536
_DIGEST_BYTES = 16
_BEARER = "bearer "


def tenant_of(
    headers: Mapping[str, str], user_headers: Sequence[str] = TENANT_HEADERS, client: str | None = None
) -> str:
    """Return the tenant of a request: `client`, followed by a digest of the headers that name a user.

    Return `public` if the request has no client and no such header.

    Args:
        headers: the request's headers, with names in lower case.
        user_headers: headers that name a user (setting `access.tenant_headers`).
        client: tenant of the authenticated client; None if the proxy has no clients.
    """
    return _tenant(client, {name: headers[name] for name in user_headers if headers.get(name)})


def _tenant(client: str | None, identity: Mapping[str, Json]) -> str:
    if not identity:
        return client or PUBLIC_TENANT
    user = hashlib.sha256(dumps(_merge_keys(identity), sort_keys=True)).hexdigest()[:16]
    return user if client is None else f"{client}/{user}"


def _merge_keys(identity: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return one identity for a key, whichever headers have it: `Authorization: Bearer KEY` and `x-api-key: KEY`."""
    headers = {name: str(value) for name, value in identity.items() if name in KEY_HEADERS}
    bearer = headers.pop("authorization", None)
    keys = {*headers.values(), *([] if bearer is None else [_token_of(identity)])}
    if len(keys) != 1 or None in keys:
        return identity
    others = {name: value for name, value in identity.items() if name not in KEY_HEADERS}
    return {"authorization": f"Bearer {keys.pop()}", **others}


class Tenants:
    """Determines tenants by the settings, and by the cookies and tokens that the upstream has set or accepted. Thread-safe."""

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self._set_cookies = _RecentDigests()
        self._accepted_tokens = _RecentDigests()

    @property
    def contained_headers(self) -> Sequence[str]:
        """Headers whose values tenants contain."""
        names = self._settings.tenant_headers
        return names if self._settings.tenant_cookies is None else [name for name in names if name != "cookie"]

    def tenant_of(self, headers: Mapping[str, str], client: str | None) -> str:
        """Return the tenant of a request, given its headers with names in lower case; see the function `tenant_of`."""
        names = self._settings.tenant_headers
        identity: dict[str, Json] = {name: headers[name] for name in names if headers.get(name)}
        if (user := self._claimed_user(headers)) is not None and "authorization" in identity:
            identity["authorization"] = user
        cookies = identity.pop("cookie", None)
        return _tenant(client, identity) if cookies is None else self._with_cookies(client, identity, str(cookies))

    def _with_cookies(self, client: str | None, identity: dict[str, Json], header: str) -> str:
        chosen = self._settings.tenant_cookies
        cookies = _split_cookies(header)
        if chosen is not None:
            kept = [cookie for cookie in cookies if cookie.partition("=")[0] in chosen]
            return _tenant(client, {**identity, **_cookie_identity(kept)})
        own = [cookie for cookie in cookies if not _is_load_balancers(cookie)]
        unset = [cookie for cookie in own if cookie not in self._set_cookies]
        tenant = _tenant(client, {**identity, **_cookie_identity(unset, cookies, header)})
        if all(f"{tenant} {cookie}" in self._set_cookies for cookie in own if cookie not in unset):
            return tenant
        # The upstream has set them for another tenant.
        return _tenant(client, {**identity, **_cookie_identity(own, cookies, header)})

    def record_cookies(self, tenant: str, headers: Iterable[tuple[str, str]]) -> None:
        """Record the cookies that the upstream sets in an answer to a tenant. Do not record responses to a login."""
        for name, value in headers:
            if name == "set-cookie":
                cookie = value.partition(";")[0].strip()
                self._set_cookies.add(cookie)
                self._set_cookies.add(f"{tenant} {cookie}")

    def record_answer(self, exchange: Exchange) -> None:
        """Record the token of a request that the upstream has answered."""
        request = exchange.request
        is_answered = exchange.facts.served_by is not None and exchange.hit is None and exchange.status == 200
        if self._settings.tenant_claim is not None and is_answered and request is not None:
            token = _token_of(request.headers)
            if token is not None:
                self._accepted_tokens.add(token)

    def _claimed_user(self, headers: Mapping[str, str]) -> Json:
        """Return issuer and claim of a token that the upstream has accepted; None without one."""
        name = self._settings.tenant_claim
        token = None if name is None else _token_of(headers)
        if name is None or token is None or token not in self._accepted_tokens:
            return None
        claims = _claims(token)
        value = field(claims, name)
        return [name, field(claims, "iss"), value] if isinstance(value, str | int) and value != "" else None


class _RecentDigests:
    """The texts that were added last, as digests."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, text: str) -> bool:
        return _digest(text) in self._digests

    def add(self, text: str) -> None:
        with self._lock:
            self._digests[_digest(text)] = None
            self._digests.move_to_end(_digest(text))
            if len(self._digests) > _MAX_REMEMBERED:
                self._digests.popitem(last=False)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).digest()


def _split_cookies(header: str) -> list[str]:
    # HTTP/1.1 joins repeated headers with a comma, which no cookie contains.
    return [cookie.strip() for cookie in header.replace(",", ";").split(";") if cookie.strip()]


def _is_load_balancers(cookie: str) -> bool:
    name = cookie.partition("=")[0]
    return any(fnmatchcase(name, pattern) for pattern in LOAD_BALANCER_COOKIES)


def _cookie_identity(kept: list[str], sent: list[str] | None = None, header: str = "") -> dict[str, Json]:
    if not kept:
        return {}
    # Tenants of earlier versions are digests of the whole header.
    return {"cookie": header if kept == sent else "; ".join(kept)}


def _token_of(headers: Mapping[str, Json]) -> str | None:
    value = headers.get("authorization")
    is_token = isinstance(value, str) and value.lower().startswith(_BEARER)
    return str(value)[len(_BEARER) :].strip() if is_token else None


def _claims(token: str) -> Json:
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        return loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
