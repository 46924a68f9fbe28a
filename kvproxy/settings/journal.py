"""Settings of the journal."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PriceSettings(BaseModel):
    """Prices of a model, in `journal.currency` per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(0.0, ge=0, description="Tokens of prompts.")
    cached: float | None = Field(None, ge=0, description="Tokens of prompts that the server reused; as input if unset.")
    output: float = Field(0.0, ge=0, description="Tokens of answers.")


class JournalSettings(BaseModel):
    """The journal of requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="Keep a record of each request, in journal.db in the data folder.")
    rows: int = Field(1_000_000, ge=1, description="Most records; the oldest go first. Totals of savings stay.")
    days: float = Field(30.0, gt=0, description="Days that a record is kept.")
    text: Literal["none", "hits", "beginning", "all"] = Field(
        "hits",
        description="Text kept of each request: none; the beginning of the question (200 characters) of semantic hits, whose"
        " stored question is another one; of every request; or all of it. Nothing is kept beside an encrypted store.",
    )
    currency: str = Field(
        "USD", min_length=1, max_length=8, description="Currency of the prices, shown with amounts of money."
    )
    prices: dict[str, PriceSettings] = Field(
        {},
        description="Prices by model: tables with input, cached and output, for a million tokens. A name may hold *, and the"
        " first that fits counts.",
    )
