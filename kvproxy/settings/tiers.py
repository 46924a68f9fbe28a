"""Settings of tiers."""

from pathlib import Path

from pydantic import ByteSize, Field

from kvproxy.settings.section import Section


class TierSettings(Section):
    """Storage of keys and values outside the pool."""

    host: ByteSize | None = Field(None, description='Host memory for chunks in bytes, or such as "4GiB".')
    disk: Path | None = Field(None, description="Folder for chunks, which survives restarts.")
    disk_size: ByteSize = Field(ByteSize(20 << 30), description="Maximum bytes of chunks on disk.")
    redis: str | None = Field(
        # It may contain a password.
        None,
        repr=False,
        description="URL of a Redis or Valkey server for chunks.",
    )
    redis_timeout: float = Field(0.5, gt=0, description="Timeout of Redis in seconds.")
    redis_ttl: float | None = Field(86_400.0, gt=0, description="Seconds until a chunk expires in Redis.")
    chunk_tokens: int = Field(256, ge=1, description="Tokens in a chunk, a multiple of engine.block_size.")
    load_timeout: float = Field(
        5.0, gt=0, description="Seconds without progress until a request computes the blocks itself."
    )

    @property
    def enabled(self) -> bool:
        """Whether a tier is configured."""
        return self.host is not None or self.disk is not None or self.redis is not None
