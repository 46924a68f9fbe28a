"""Settings of those who may use the proxy."""

from pydantic import BaseModel, ConfigDict, Field

CLIENT = "client:"
"""What the name of a client's tenant begins with."""


class ClientSettings(BaseModel):
    """One client, with what it may use. Of its key only the digest is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Its name, shown in listings.")
    key_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of its key, in hexadecimal digits.")
    requests_per_minute: int | None = Field(None, ge=1, description="Requests that it may send a minute.")
    tokens_per_minute: int | None = Field(None, ge=1, description="Tokens that it may have computed a minute.")
    concurrent_requests: int | None = Field(None, ge=1, description="Requests that it may have under way at once.")
    stored_bytes: int | None = Field(
        None, ge=0, description="Bytes of stored answers that it may have; its own least useful ones make room."
    )

    @property
    def tenant(self) -> str:
        """The tenant of its responses and blocks. Users of one client have tenants of their own: `client:NAME/DIGEST`."""
        return f"{CLIENT}{self.name}"
