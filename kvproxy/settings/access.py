"""The sections `[access]` and `[[clients]]`."""

import re
from datetime import date
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from kvproxy.settings.section import Bytes, Section
from kvproxy.units import parse_time

KEY_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "x-litellm-api-key")
"""Headers in which clients send a key."""
TENANT_HEADERS = (
    *KEY_HEADERS,
    *("x-auth-token", "x-forwarded-user", "x-forwarded-email", "x-auth-request-user", "x-auth-request-email"),
    *("x-remote-user", "remote-user", "openai-organization", "openai-project", "anthropic-workspace-id"),
    *("anthropic-user-profile-id", "cookie"),
)
LOAD_BALANCER_COOKIES = tuple(
    "AWSALB* AWSELB* GCLB GAESA ARRAffinity* ApplicationGatewayAffinity* BIGipServer* SERVERID INGRESSCOOKIE __cflb __cf_bm"
    " _cfuvid cf_clearance".split()
)
"""Patterns of cookies that load balancers and edge servers set, and that identify no user."""


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return whether a host is an address of loopback, or a name of it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


_Route = Annotated[str, Field(pattern=r"^(\*|([A-Z]+ )?/.*)$")]


class AccessSettings(Section):
    """Accepted clients, web origins, and host names, and the headers that identify tenants."""

    origins: tuple[str, ...] = Field(
        default=(), description="Origins of web pages that may call the proxy; * allows all."
    )
    open: bool = Field(default=False, description="Accept all clients beyond loopback without API keys.")
    hosts: tuple[str, ...] = Field(
        default=(), description="Public host names. IP addresses, localhost, and private names need no entry."
    )
    routes: tuple[_Route, ...] | None = Field(
        default=None,
        description="Uncached routes that are forwarded beside the public ones of the APIs, such as `GET /v1/files*`, in which *"
        " matches any text. Unset: with clients only the public routes, without clients all.",
    )
    priorities: Literal["tenant", "all"] = Field(
        default="tenant",
        description="Requests that `priority` orders: the tenant's, or all. With all, it orders the eviction of blocks, too.",
    )
    tenant_headers: tuple[str, ...] = Field(
        default=TENANT_HEADERS, description="Headers that identify tenants, who share no responses."
    )
    tenant_cookies: tuple[str, ...] | None = Field(
        default=None,
        description="Names of the cookies that identify tenants; by default all, except those of load balancers and those that"
        " the upstream sets in answers.",
    )
    tenant_claim: str | None = Field(
        default=None,
        min_length=1,
        description="Claim of a JSON Web Token in Authorization that identifies the tenant, such as sub, after the upstream has"
        " accepted the token. It requires an upstream that verifies tokens.",
    )


CLIENT_PREFIX = "client:"
"""Beginning of the tenant's name of a client, before the client's name."""


def matches_pattern(pattern: str, text: str) -> bool:
    """Whether a whole text matches a pattern, in which `*` matches any text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


class ClientSettings(Section):
    """A client with its limits; only the digest of its key is stored."""

    @field_validator("expires", "previous_key_expires", mode="before")
    @classmethod
    def _parse_expiry(cls, value: Any) -> Any:
        """Read a date of TOML, or a text with a date."""
        if isinstance(value, date):
            value = value.isoformat()
        if isinstance(value, str) and not re.match(r"\d{4}-", value):
            # A duration would begin again at each start.
            raise ValueError("must be a date such as 2026-12-31, or seconds since the epoch")
        return parse_time(value) if isinstance(value, str) else value

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Name of the client.")
    key_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the API key in hexadecimal.")
    previous_key_sha256: str | None = Field(
        default=None, pattern=r"^[0-9a-f]{64}$", description="SHA-256 before a rotation."
    )
    previous_key_expires: float | None = Field(default=None, description="Its expiry in seconds since the epoch.")
    requests_per_minute: int | None = Field(default=None, ge=1, description="Maximum requests per minute.")
    tokens_per_minute: int | None = Field(default=None, ge=1, description="Maximum computed tokens per minute.")
    concurrent_requests: int | None = Field(default=None, ge=1, description="Maximum requests in flight.")
    budget_per_day: float | None = Field(
        default=None,
        ge=0,
        description="Maximum price of its requests in a UTC day, in `journal.currency`.",
    )
    budget_per_month: float | None = Field(
        default=None,
        ge=0,
        description="Maximum price of its requests in a UTC month, in `journal.currency`.",
    )
    team: str | None = Field(
        default=None,
        description="Client whose quotas and budgets count the requests of all clients with this team, too.",
    )
    stored_bytes: Bytes | None = Field(default=None, ge=0, description="Maximum size of its stored responses.")
    models: tuple[str, ...] = Field(
        default=(), description="Models that it may use, in which * matches any text; by default all."
    )
    expires: float | None = Field(
        default=None,
        description="When its key expires: a date such as 2026-12-31, or seconds since the epoch; by default never.",
    )
    disabled: bool = Field(
        default=False, description="Reject its requests with 403; `kvproxy keys disable` and `enable` set it."
    )
    counts_since: float | None = Field(
        default=None, description="Start of its counts in seconds since the epoch; `kvproxy keys reset` sets it."
    )

    def has_expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires

    def accepts(self, digest: str, now: float) -> bool:
        if self.has_expired(now):
            return False
        if digest == self.previous_key_sha256:
            return self.previous_key_expires is not None and now < self.previous_key_expires
        return digest == self.key_sha256

    def may_use(self, model: str) -> bool:
        return not self.models or any(matches_pattern(pattern, model) for pattern in self.models)

    @property
    def has_budget(self) -> bool:
        return self.budget_per_day is not None or self.budget_per_month is not None

    @property
    def digests(self) -> tuple[str, ...]:
        previous = self.previous_key_sha256
        return (self.key_sha256,) if previous is None else (self.key_sha256, previous)

    @property
    def tenant(self) -> str:
        return f"{CLIENT_PREFIX}{self.name}"
