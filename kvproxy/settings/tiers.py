from pathlib import Path

from pydantic import Field

from kvproxy.settings.section import Bytes, Seconds, Section


class TierSettings(Section):
    """Storage of KV chunks outside the engine's block pool."""

    host: Bytes | None = Field(None, description='Host memory for chunks, such as "4GiB".')
    disk: Path | None = Field(None, description="Folder for chunks, which survives restarts.")
    disk_size: Bytes = Field(20 * 2**30, description="Maximum size of chunks on disk.")
    # The URL may contain a password.
    redis: str | None = Field(None, repr=False, description="URL of a Redis or Valkey server for chunks.")
    redis_timeout: Seconds = Field(0.5, gt=0, description="Timeout of Redis.")
    redis_ttl: Seconds | None = Field(86_400.0, gt=0, description="Time until a chunk expires in Redis.")
    chunk_tokens: int = Field(256, ge=1, description="Tokens in a chunk, a multiple of engine.block_size.")
    load_timeout: Seconds = Field(
        5.0, gt=0, description="Time without progress until a request computes the blocks itself."
    )

    @property
    def enabled(self) -> bool:
        return self.host is not None or self.disk is not None or self.redis is not None
