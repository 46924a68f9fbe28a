"""The section `[journal]`, with the prices of models."""

import time
from collections.abc import Mapping
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kvproxy.settings.section import Seconds, Section
from kvproxy.units import utc_day

LIST_CURRENCY = "USD"
"""Currency of the list prices."""
PRICE_FILE = "prices.json"
"""File of list prices in the data folder."""


def _parse_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no day: write it as 2026-12-01") from None


_OF_TEXT = ("input", "cached", "write_5m", "write_1h", "output")
_OF_MODALITIES = ("audio_input", "audio_output", "image_input", "image_output")
_SCALED = (*_OF_TEXT, *_OF_MODALITIES)
_PRICES = (*_OF_TEXT, "storage")
_Day = Annotated[str, AfterValidator(_parse_day)]


class DatedPriceSettings(Section):
    """Prices of a model from a day on, in `journal.currency` per million tokens. Fields that are not set stay as they were."""

    input: float = Field(default=0.0, ge=0, description="Price of prompt tokens.")
    cached: float | None = Field(
        default=None,
        ge=0,
        description="Price of reused prompt tokens; by default in the provider's ratio to input, else input.",
    )
    write_5m: float | None = Field(
        default=None,
        ge=0,
        description="Price of tokens that are stored for the provider's default lifetime, such as five minutes; by default"
        " in its ratio to input, else input.",
    )
    write_1h: float | None = Field(
        default=None,
        ge=0,
        description="Price of tokens that are stored for one hour; by default in the provider's ratio to input, else input.",
    )
    storage: float = Field(
        default=0.0, ge=0, description="Price of storing reused prompt tokens for one hour, as in Gemini."
    )
    output: float = Field(default=0.0, ge=0, description="Price of response tokens.")
    audio_input: float | None = Field(
        default=None,
        ge=0,
        description="Price of audio tokens of prompts; without it, and a list price, requests with such tokens have no price.",
    )
    audio_output: float | None = Field(
        default=None,
        ge=0,
        description="Price of audio tokens of responses; without it, and a list price, requests with such tokens have no price.",
    )
    image_input: float | None = Field(
        default=None, ge=0, description="Price of image tokens of prompts; by default input."
    )
    image_output: float | None = Field(
        default=None, ge=0, description="Price of image tokens of responses; by default output."
    )
    service_tiers: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default={},
        description="Prices of service tiers as multiples of these, such as { flex = 0.5, priority = 2 }; by default the"
        " published ones.",
    )


class PriceSettings(DatedPriceSettings):
    """Prices of a model, in `journal.currency` per million tokens."""

    changes: dict[_Day, DatedPriceSettings] = Field(
        default={},
        description='Later prices by the UTC day on which they start, such as [journal.prices."gpt-4o*".changes.2026-12-01].',
    )
    least_cached_tokens: int | None = Field(
        default=None,
        ge=0,
        description="Length of the shortest prefix that the provider caches; by default its published rule.",
    )
    ttl: Seconds | None = Field(
        default=None,
        gt=0,
        description="Time after which the provider drops an unused prefix; by default its published rule.",
    )

    @property
    def has_prices(self) -> bool:
        """Whether a price is set, perhaps 0; a table may have only rules of the cache, factors of tiers, or prices of audio."""
        return not self.model_fields_set.isdisjoint(_PRICES)

    def on(self, day: str) -> "PriceSettings":
        """Return the prices of a UTC day, such as 2026-12-01."""
        started = [self.changes[start] for start in sorted(self.changes) if start <= day]
        given = [{name: getattr(change, name) for name in change.model_fields_set} for change in started]
        return self.model_copy(update={name: value for change in given for name, value in change.items()})

    def scaled(self, factor: float) -> "PriceSettings":
        """Return these prices times a factor, such as that of a service tier or of an exchange rate."""
        prices = {name: price * factor for name in _SCALED if (price := getattr(self, name)) is not None}
        return self.model_copy(update=prices)

    @property
    def of_modalities(self) -> dict[str, float]:
        """Prices of audio and image tokens that are set, by field."""
        return {name: price for name in _OF_MODALITIES if (price := getattr(self, name)) is not None}

    @property
    def price_of_reuse(self) -> float:
        return self.input if self.cached is None else self.cached

    @property
    def price_of_5m_write(self) -> float:
        return self.input if self.write_5m is None else self.write_5m

    @property
    def price_of_1h_write(self) -> float:
        return self.input if self.write_1h is None else self.write_1h


def _require_table(value: object) -> object:
    if not isinstance(value, Mapping | PriceSettings):
        raise ValueError(
            'write a table for each model: [journal.prices."gpt-4o*"] input = 2.5, cached = 1.25, output = 10'
        )
    return value


_TABLES = BeforeValidator(_require_table)


class JournalSettings(Section):
    """The journal of requests."""

    enabled: bool = Field(default=True, description="Record each request.")
    store: Literal["file", "postgres"] | None = Field(
        default=None,
        description="journal.db in the data folder, or the store's PostgreSQL, for all proxies on it; by default where"
        " the store is.",
    )
    max_rows: int = Field(
        default=1_000_000,
        ge=1,
        description="Maximum records; the oldest are deleted, in PostgreSQL by whole days.",
    )
    retention: Seconds = Field(default=30 * 86_400.0, gt=0, description="Time until a record is deleted.")
    text: Literal["none", "hits", "beginning", "all"] = Field(
        default="hits",
        description="Recorded text: none; 200 characters (beginning and end) of both questions of semantic hits, and of the"
        " question of failed requests (hits) or of all requests (beginning); or all. With an encrypted store, no text is"
        " recorded.",
    )
    currency: str = Field(default="USD", min_length=1, max_length=8, description="Currency of the prices.")
    usd_rate: float | None = Field(
        default=None,
        gt=0,
        description="Price of one US dollar in journal.currency, such as 0.86, at which list prices are converted. By default,"
        " list prices apply only to the currency USD.",
    )
    prices: Annotated[dict[str, Annotated[PriceSettings, _TABLES]], _TABLES] = Field(
        default={},
        description="Prices by model: tables with input, cached, write_5m, write_1h, storage, output, audio_input,"
        " audio_output, image_input and image_output per million tokens, and with service_tiers, changes, least_cached_tokens"
        " and ttl. Names may contain *; the first match applies. By default, the list prices of the providers in USD.",
    )
    price_list: Path | None = Field(
        default=None,
        description="File with list prices in the form of genai-prices; by default prices.json in the data folder, which"
        " kvproxy prices update writes, or else the prices of the installed package.",
    )

    @property
    def has_prices(self) -> bool:
        """Whether a model can have a price: of the settings, or in the currency of the list prices."""
        return self.has_list_prices or any(price.has_prices or price.changes for price in self.prices.values())

    @property
    def has_list_prices(self) -> bool:
        """Whether list prices, which are in US dollars, apply."""
        return self.currency == LIST_CURRENCY or self.usd_rate is not None

    def exchange_rate(self, currency: str) -> float | None:
        """Return the price of one unit of a currency in the currency of the settings; None if it is unknown."""
        if currency == self.currency:
            return 1.0
        return self.usd_rate if currency == LIST_CURRENCY else None

    @model_validator(mode="after")
    def _refuse_rate_of_list_currency(self) -> "JournalSettings":
        if self.currency == LIST_CURRENCY and self.usd_rate is not None:
            raise ValueError(
                f"usd_rate converts list prices to another currency than {LIST_CURRENCY}: set currency, too"
            )
        return self


def price_of(model: str, prices: Mapping[str, PriceSettings], moment: datetime | None = None) -> PriceSettings | None:
    """Return the price of a model at a time, by default now: by its name, else by the first matching pattern.

    It may lack prices; see `PriceSettings.has_prices`.
    """
    if model in prices:
        price: PriceSettings | None = prices[model]
    else:
        price = next((price for pattern, price in prices.items() if fnmatchcase(model, pattern)), None)
    if price is None or not price.changes:
        return price
    return price.on(utc_day(time.time() if moment is None else moment.timestamp()))


MILLION = 1_000_000


def input_price(price: PriceSettings, prompt: int, reused: int, written_5m: int, written_1h: int) -> float:
    """Return the price of a prompt from numbers of tokens: all, reused, and written to the provider's cache (for 5m, 1h)."""
    plain = max(0, prompt - reused - written_5m - written_1h)
    paid = (
        reused * price.price_of_reuse
        + written_5m * price.price_of_5m_write
        + written_1h * price.price_of_1h_write
        + plain * price.input
    )
    return paid / MILLION


def hit_price(price: PriceSettings, prompt: int, cached: int, completion: int) -> float:
    """Return the price of a hit at the provider, which would have reused `cached` tokens of the prompt."""
    return input_price(price, prompt, cached, 0, 0) + completion * price.output / MILLION


def storage_price(price: PriceSettings, token_hours: float) -> float:
    return token_hours * price.storage / MILLION


def price_lost_per_token(price: PriceSettings, prompt: int, reused: int, written_5m: int, written_1h: int) -> float:
    """Return the mean price that reuse would save per computed token. See `input_price` for the arguments."""
    computed = prompt - reused
    if computed <= 0:
        return 0.0
    above_reuse = (
        written_5m * (price.price_of_5m_write - price.price_of_reuse)
        + written_1h * (price.price_of_1h_write - price.price_of_reuse)
        + max(0, computed - written_5m - written_1h) * (price.input - price.price_of_reuse)
    )
    return above_reuse / computed / MILLION
