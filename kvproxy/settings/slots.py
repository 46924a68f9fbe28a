"""Settings of llama.cpp's slots."""

from pydantic import BaseModel, ByteSize, ConfigDict, Field


class SlotSettings(BaseModel):
    """Slots of upstreams that are llama.cpp's server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    disk_size: ByteSize = Field(
        ByteSize(8 << 30),
        description="Most bytes of slots that each server keeps in its --slot-save-path; 0 keeps none there.",
    )
    least_tokens: int = Field(32, ge=1, description="Fewest tokens that are worth saving or restoring.")
    save_after: float = Field(2.0, ge=0, description="Seconds without a request after which a slot is saved.")
    wait: float = Field(
        30.0, ge=0, description="Most seconds that a request waits here for a free slot; then llama-server queues it."
    )
