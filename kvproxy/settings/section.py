"""Base class of the sections of the settings."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen section that rejects unknown settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")
