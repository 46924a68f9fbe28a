"""Settings of those who may use the proxy."""

from pydantic import BaseModel, ConfigDict, Field


class ClientSettings(BaseModel):
    """One client. Of its key only the digest is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Its name, shown in listings.")
    key_sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of its key, in hexadecimal digits.")
    requests_per_minute: int | None = Field(None, ge=1, description="Requests that it may send a minute.")
