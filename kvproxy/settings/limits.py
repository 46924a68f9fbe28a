"""Settings of how much is taken in."""

from pydantic import BaseModel, ConfigDict, Field


class LimitSettings(BaseModel):
    """Bounds on what comes in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    body: int = Field(
        64 * 2**20, ge=1, description="Most bytes of a request's body on the cached routes; a larger one gets 413."
    )
    body_seconds: float = Field(
        60.0, gt=0, description="Seconds within which a body on the cached routes must arrive; else 408."
    )
    waiting: int = Field(
        256, ge=0, description="Requests that may wait for the engine or for an upstream; a further one gets 503."
    )
    waiting_seconds: float = Field(30.0, gt=0, description="Seconds that a request waits so; then it gets 503.")
    connections: int = Field(4096, ge=1, description="Open connections of clients; a further one gets 503.")
    imports: int = Field(4 * 2**30, ge=1, description="Most bytes of a file that is imported into the cache.")
