"""Settings of how much is taken in."""

from pydantic import BaseModel, ConfigDict, Field


class LimitSettings(BaseModel):
    """Bounds on what comes in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    body: int = Field(
        64 * 2**20, ge=1, description="Most bytes of a request's body on the cached routes; a larger one gets 413."
    )
    imports: int = Field(4 * 2**30, ge=1, description="Most bytes of a file that is imported into the cache.")
