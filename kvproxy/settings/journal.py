from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field

from kvproxy.settings.section import Seconds, Section


class PriceSettings(Section):
    """Prices of a model, in `journal.currency` per million tokens."""

    input: float = Field(0.0, ge=0, description="Price of prompt tokens.")
    cached: float | None = Field(None, ge=0, description="Price of reused prompt tokens; by default input.")
    write_5m: float | None = Field(
        None, ge=0, description="Price of prompt tokens that the provider stores for five minutes; by default input."
    )
    write_1h: float | None = Field(
        None, ge=0, description="Price of prompt tokens that the provider stores for one hour; by default input."
    )
    storage: float = Field(
        0.0,
        ge=0,
        description="Price of storing reused prompt tokens for one hour, such as of Gemini's explicit caches.",
    )
    output: float = Field(0.0, ge=0, description="Price of response tokens.")
    least_cached_tokens: int = Field(1_024, ge=0, description="Length of the shortest prefix that the provider caches.")
    ttl: Seconds = Field(300.0, gt=0, description="Time after which the provider drops an unused prefix.")

    @property
    def price_of_reuse(self) -> float:
        return self.input if self.cached is None else self.cached

    @property
    def price_of_5m_write(self) -> float:
        return self.input if self.write_5m is None else self.write_5m

    @property
    def price_of_1h_write(self) -> float:
        return self.input if self.write_1h is None else self.write_1h


class JournalSettings(Section):
    """The journal of requests."""

    enabled: bool = Field(True, description="Record each request.")
    store: Literal["file", "postgres"] | None = Field(
        None,
        description="Where: file is journal.db in the data folder; postgres is the database of the store, for all proxies on it."
        " By default postgres if the store is in PostgreSQL, else file.",
    )
    max_rows: int = Field(
        1_000_000,
        ge=1,
        description="Maximum number of records; the oldest are deleted first, in PostgreSQL by whole days. Totals stay.",
    )
    retention: Seconds = Field(30 * 86_400.0, gt=0, description="Time until a record is deleted.")
    text: Literal["none", "hits", "beginning", "all"] = Field(
        "hits",
        description="Recorded text: none; hits, the first 200 characters of the question of semantic hits; beginning, the same"
        " for all requests; all, the whole text. With an encrypted store no text is recorded.",
    )
    currency: str = Field(
        "USD", min_length=1, max_length=8, description="Currency of the prices, shown with amounts of money."
    )
    prices: dict[str, PriceSettings] = Field(
        {},
        description="Prices by model: tables with input, cached, write_5m, write_1h, storage and output per million tokens, and"
        " with least_cached_tokens and ttl. Names may contain *; the first match applies.",
    )


def price_of(model: str, prices: Mapping[str, PriceSettings]) -> PriceSettings | None:
    """Return the price of a model: by its name, else by the first matching pattern."""
    if model in prices:
        return prices[model]
    return next((price for pattern, price in prices.items() if fnmatchcase(model, pattern)), None)
