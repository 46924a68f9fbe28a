"""Settings of clients."""

from pydantic import Field

from kvproxy.settings.section import Bytes, Section

CLIENT = "client:"
"""Prefix of a client's tenant."""


class ClientSettings(Section):
    """A client with its limits; only the digest of its key is stored."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Name of the client.")
    key_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the API key in hexadecimal digits.")
    requests_per_minute: int | None = Field(None, ge=1, description="Maximum requests per minute.")
    tokens_per_minute: int | None = Field(None, ge=1, description="Maximum computed tokens per minute.")
    concurrent_requests: int | None = Field(None, ge=1, description="Maximum requests in flight.")
    stored_bytes: Bytes | None = Field(
        None, ge=0, description="Maximum size of stored responses; beyond it, its own least useful are evicted."
    )

    @property
    def tenant(self) -> str:
        """Tenant of its responses and blocks; users of a client have the tenant `client:NAME/DIGEST`."""
        return f"{CLIENT}{self.name}"
