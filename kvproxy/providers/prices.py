"""Prices of models: those of the settings, else the providers' list prices from the package `genai-prices`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import lru_cache

from kvproxy.providers.cache_rules import CacheRule, cache_rule, cache_rule_or_assumption, rule_of_marks
from kvproxy.settings.journal import JournalSettings, PriceSettings, price_of

LIST_CURRENCY = "USD"
# Dates and revisions, such as -20251101, -2026-07-01, -latest, @20251101, -v1:0, -preview-05-06, and -001.
_REVISION = re.compile(
    r"(?:[-@](?:\d{8}|\d{4}-\d\d-\d\d|latest|default|preview(?:-\d\d-\d(?:\d|\d{3}))?|\d{3,4}|v\d+(?::\d+)?))+$"
)


class ModelPrices(Mapping[str, PriceSettings]):
    """Prices by model, in the currency of the settings.

    A price of the settings has precedence, by name, then by pattern. The list prices are in US dollars, so they apply only if the
    settings have this currency. A model without either has no price. Iteration yields the names and patterns of the settings.
    """

    def __init__(self, settings: JournalSettings) -> None:
        self._configured = settings.prices
        self._has_list_prices = settings.currency == LIST_CURRENCY

    def __getitem__(self, model: str) -> PriceSettings:
        price = price_of(model, self._configured)
        if price is None and self._has_list_prices:
            price = list_price(model)
        if price is None:
            raise KeyError(model)
        return price

    def __iter__(self) -> Iterator[str]:
        return iter(self._configured)

    def __len__(self) -> int:
        return len(self._configured)


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of a provider's prompt cache that explain lost reuse.

    Attributes:
        minimum_tokens: tokens of the shortest prefix that is cached.
        lifetime: seconds from the last use of a prefix to its expiry.
        step_tokens: cached prefixes are multiples of this number of tokens.
    """

    minimum_tokens: int
    lifetime: float
    step_tokens: int


def cache_limits(model: str, prices: Mapping[str, PriceSettings]) -> CacheLimits:
    """Return the limits of the settings, else of the provider's rule, else common ones."""
    rule, price = cache_rule_or_assumption(model), price_of(model, prices) or PriceSettings()
    minimum = rule.minimum_tokens if price.least_cached_tokens is None else price.least_cached_tokens
    return CacheLimits(minimum or 0, rule.default_lifetime if price.ttl is None else price.ttl, rule.step_tokens)


def list_price(model: str, moment: datetime | None = None) -> PriceSettings | None:
    """Return the list price of a model in US dollars per million tokens; None if it is unknown.

    A price with tiers by the length of the prompt is the one of the shortest prompts. The first call loads the package, which
    takes half a second.

    Args:
        moment: time of the request, because prices change, for some providers by the hour; by default noon UTC of this day.
    """
    rule = cache_rule(model)
    if rule is None:
        # Names of open weights on other servers may equal names of hosted models.
        return None
    now = datetime.now(UTC).replace(hour=12) if moment is None else moment
    return _list_price(model, rule, now.replace(minute=0, second=0, microsecond=0))


def _gateway(model: str) -> str | None:
    """Return the gateway whose form a name has, because gateways have prices of their own."""
    if "/" in model:
        return "openrouter"
    if "anthropic." in model:
        return "aws"
    return "google" if "@" in model else None


@lru_cache(maxsize=4_096)
def _list_price(model: str, rule: CacheRule, moment: datetime) -> PriceSettings | None:
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(model, None, _gateway(model) or rule.provider, None)
    except LookupError:
        return None
    names = {found.id, *_names(found.match)}
    if _without_revision(model) not in {_without_revision(name) for name in names}:
        # The package also matches by the beginning of a name, so a new model would get the price of an earlier one.
        return None
    price = found.get_prices(moment)
    if (uncached := _usd(price, "input_mtok")) is None or (output := _usd(price, "output_mtok")) is None:
        return None
    return PriceSettings(
        input=uncached,
        output=output,
        cached=_usd(price, "cache_read_mtok", uncached, rule.read_ratio),
        write_5m=_usd(price, "cache_write_mtok", uncached, rule.default_write_ratio),
        write_1h=_usd(price, "cache_write_1h_mtok", uncached, rule.write_ratios.get("1h")),
    )


def relative_prices(model: str) -> PriceSettings:
    """Return Anthropic's prices of a model as multiples of the price of uncached tokens."""
    rule = rule_of_marks(model)
    return PriceSettings(
        input=1.0, cached=rule.read_ratio, write_5m=rule.default_write_ratio, write_1h=rule.write_ratios.get("1h")
    )


class RelativePrices(Mapping[str, PriceSettings]):
    """Prices as multiples of the price of uncached tokens, for each model; see `relative_prices`."""

    def __getitem__(self, model: str) -> PriceSettings:
        return relative_prices(model)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _names(clause: object) -> Iterator[str]:
    if isinstance(clause, str):
        yield clause.lower()
    elif isinstance(clause, list):
        for each in clause:
            yield from _names(each)
    elif is_dataclass(clause):
        for member in fields(clause):
            yield from _names(getattr(clause, member.name))


def _without_revision(name: str) -> str:
    return _REVISION.sub("", name.lower())


def _usd(price: object, name: str, uncached: float = 0.0, ratio: float | None = None) -> float | None:
    value = getattr(price, name, None)
    value = getattr(value, "base", value)
    if value is not None:
        return float(value)
    return None if ratio is None else uncached * ratio
