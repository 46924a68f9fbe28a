"""Settings of what keeps keys and values beyond the pool."""

from pathlib import Path

from pydantic import BaseModel, ByteSize, ConfigDict, Field


class TierSettings(BaseModel):
    """Keys and values kept outside the pool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: ByteSize | None = Field(None, description='Host memory for chunks, in bytes or as "4GiB"; none by default.')
    disk: Path | None = Field(None, description="Folder of chunks on disk, which a restart finds; none by default.")
    disk_size: ByteSize = Field(ByteSize(20 << 30), description="Most bytes of chunks on disk.")
    redis: str | None = Field(
        # It may hold a password.
        None,
        repr=False,
        description="URL of a Redis or Valkey server for chunks; none by default.",
    )
    redis_timeout: float = Field(0.5, gt=0, description="Seconds to wait for an answer of Redis.")
    redis_ttl: float | None = Field(86_400.0, gt=0, description="Seconds after which Redis drops a chunk.")
    chunk_tokens: int = Field(256, ge=1, description="Tokens in a chunk, a multiple of engine.block_size.")
    load_timeout: float = Field(
        5.0, gt=0, description="Seconds without progress after which a request computes what it waited for."
    )

    @property
    def enabled(self) -> bool:
        """Whether there is any tier."""
        return self.host is not None or self.disk is not None or self.redis is not None
