"""Prices of models: those of the settings, else the providers' list prices from the package `genai-prices`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from fnmatch import fnmatchcase
from itertools import groupby

from kvproxy.providers.cache_rules import cache_rule, cache_rule_or_assumption, rule_of_marks
from kvproxy.providers.modality_prices import of_modalities
from kvproxy.providers.published_prices import (
    has_list_price,
    least_priced_otherwise,
    list_price,
    listed_models,
    listed_tiers,
    noon_today,
    published_tier_factor,
    tier_starts,
)
from kvproxy.settings.journal import JournalSettings, PriceSettings, price_of

_FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_PRICES = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
_NOON = time(12)
_HALF_HOUR = timedelta(minutes=30)
_HALF_HOURS = 48
_MAX_SEARCHED = 4_096  # Models and half hours.


class ModelPrices(Mapping[str, PriceSettings]):
    """Prices by model, in the currency of the settings.

    A price of the settings has precedence, by name, then by pattern. Its missing prices of cached and written tokens have the
    published ratio of the provider to the price of input. The list prices are in US dollars, so they apply only if the
    settings have this currency or its rate. A model without either has no price. Iteration yields the names and patterns of
    the settings with a price: a pattern may have only rules of the provider's cache, or prices of audio.
    """

    def __init__(self, settings: JournalSettings) -> None:
        self._configured = settings.prices
        self._has_list_prices = settings.has_list_prices
        self._usd_rate = settings.usd_rate
        self.price_list = settings.price_list
        self._searched: set[tuple[str, int]] = set()

    def __getitem__(self, model: str) -> PriceSettings:
        price = self.at(model)
        if price is None:
            raise KeyError(model)
        return price

    def at(
        self, model: str, moment: datetime | None = None, prompt_tokens: int = 0, service_tier: str | None = None
    ) -> PriceSettings | None:
        """Return the price of a request; see `list_price` for the arguments.

        A service tier without a known price costs as much as the standard tier; see `tier_factor`.
        """
        table = price_of(model, self._configured, moment)
        if table is None or not table.has_prices:
            if not self._has_list_prices:
                return None
            own_factor = None if table is None else table.service_tiers.get(service_tier or "")
            listed_tier = service_tier if own_factor is None else None
            listed = list_price(model, moment, prompt_tokens, self.price_list, listed_tier)
            if listed is not None and self._usd_rate is not None:
                listed = listed.scaled(self._usd_rate)
            if listed is not None and table is not None:
                # The factor of a listed tier is in the list's prices already.
                factor = None
                if listed_tier is not None:
                    factor = self.tier_factor(model, listed_tier, moment, prompt_tokens)
                own = {name: price * (factor or 1.0) for name, price in table.of_modalities.items()}
                listed = listed.model_copy(update=own)
            if listed is not None and own_factor is not None:
                return listed.scaled(own_factor)
            if moment is not None and service_tier is None:
                if len(self._searched) >= _MAX_SEARCHED:
                    self._searched.clear()
                self._searched.add((model, _half_hour(moment.timestamp())))
            return listed
        price = _with_published_ratios(model, table)
        factor = None if service_tier is None else self.tier_factor(model, service_tier, moment, prompt_tokens)
        return price if factor is None else price.scaled(factor)

    def is_found_at_once(self, model: str, seconds: float) -> bool:
        """Whether the price of a request at a time does not require a search of the price list, which may take half a second."""
        return (model, _half_hour(seconds)) in self._searched or self.is_configured(model)

    def tier_factor(
        self, model: str, service_tier: str, moment: datetime | None = None, prompt_tokens: int = 0
    ) -> float | None:
        """Return the price of a service tier as a multiple of the standard price: of the settings, else published.

        None if it is unknown.
        """
        price = price_of(model, self._configured, moment)
        if price is not None and service_tier in price.service_tiers:
            return price.service_tiers[service_tier]
        return published_tier_factor(model, service_tier, moment, prompt_tokens, self.price_list)

    def is_configured(self, model: str) -> bool:
        """Whether the settings have the price of the model on each day, so that no list price applies."""
        first = price_of(model, self._configured, _FIRST_DAY)
        return (first is not None and first.has_prices) or not self._has_list_prices

    def source_of(self, model: str) -> str | None:
        """Return `settings: PATTERN`, or `list` for the list price; None without a price."""
        patterns = (name for name in self._configured if fnmatchcase(model, name))
        pattern = model if model in self._configured else next(patterns, None)
        price = price_of(model, self._configured)
        if price is not None and price.has_prices:
            return f"settings: {pattern}"
        return None if self.at(model) is None else "list"

    def tiers(self, model: str, service_tier: str | None = None) -> list[tuple[int, PriceSettings]]:
        """Return the present prices with the numbers of prompt tokens above which they apply; empty without a price."""
        starts = [0] if self.source_of(model) != "list" else [0, *tier_starts(model, self.price_list)]
        priced = ((start, self.at(model, None, start + 1, service_tier)) for start in starts)
        return [(start, price) for start, price in priced if price is not None]

    def hours(self, model: str) -> list[tuple[str, PriceSettings]]:
        """Return the list prices of a model by the hours of this UTC day, such as `01:00-04:00, 06:00-10:00`, that of noon first.

        Empty if the price does not depend on the hour.
        """
        if self.source_of(model) != "list" or least_priced_otherwise(model, self.price_list) != 0:
            return []
        noon = noon_today()
        midnight = noon - timedelta(hours=12)
        prices = [self.at(model, midnight + half * _HALF_HOUR) for half in range(_HALF_HOURS)]
        spans = [
            (price, f"{_clock(midnight, halves[0])}-{_clock(midnight, halves[-1] + 1)}")
            for price, halves in _runs(prices)
            if price is not None
        ]
        found = list(
            {price.model_dump_json(): price for price in (prices[_HALF_HOURS // 2], *prices) if price}.values()
        )
        return [(", ".join(text for other, text in spans if other == price), price) for price in found]

    def service_tiers(self, model: str) -> dict[str, str]:
        """Return the service tiers with a known price, by name, each with its source, as in `source_of`.

        A factor applies to the price of the standard tier.
        """
        source = self.source_of(model)
        if source is None:
            return {}
        own = (price_of(model, self._configured) or PriceSettings()).service_tiers
        sources = {}
        for tier in sorted({*own, *listed_tiers(model, self.price_list)}):
            if (factor := self.tier_factor(model, tier)) is not None:
                is_listed = source == "list" and tier not in own and has_list_price(model, tier, self.price_list)
                origin = "settings" if tier in own else "published"
                sources[tier] = source if is_listed else f"{source}, {origin} factor {factor:g}"
        return sources

    def known_models(self) -> list[str]:
        """Return the names in the settings that are no patterns, then those of the price list."""
        listed = sorted(listed_models(self.price_list)) if self._has_list_prices else []
        return list(dict.fromkeys((*(name for name in self._configured if "*" not in name), *listed)))

    def later(self, model: str) -> list[tuple[str, PriceSettings]]:
        """Return the later prices of the settings with the UTC days on which they start, such as 2026-12-01."""
        price, today = price_of(model, self._configured) or PriceSettings(), datetime.now(UTC).date().isoformat()
        later = [(day, price.on(day)) for day in sorted(price.changes) if day > today]
        return [(day, _with_published_ratios(model, dated)) for day, dated in later if dated.has_prices]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._configured if self.at(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


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


def shortest_cached_prefix(model: str, prices: Mapping[str, PriceSettings]) -> int:
    """Return the tokens of the shortest prefix that the provider caches: of the settings, else published; 0 if unknown."""
    rule, price = cache_rule(model), price_of(model, prices)
    if price is not None and price.least_cached_tokens is not None:
        return price.least_cached_tokens
    return 0 if rule is None else rule.minimum_tokens or 0


def _with_published_ratios(model: str, price: PriceSettings) -> PriceSettings:
    rule = cache_rule(model)
    if rule is None:
        return price
    ratios = {
        "cached": rule.read_ratio,
        "write_5m": rule.default_write_ratio,
        "write_1h": rule.write_ratios.get("1h"),
    }
    missing = {
        name: price.input * ratio
        for name, ratio in ratios.items()
        if ratio is not None and getattr(price, name) is None
    }
    return price.model_copy(update=missing) if missing else price


def price_at(
    model: str,
    prices: Mapping[str, PriceSettings],
    seconds: float,
    prompt_tokens: int,
    service_tier: str | None = None,
    modalities: str | None = None,
) -> PriceSettings | None:
    """Return the price of a request at a time in seconds since the epoch; see `list_price`.

    `modalities` are its audio and image tokens and its region; see `of_modalities`.
    """
    if isinstance(prices, ModelPrices):
        price = prices.at(model, _moment(seconds), prompt_tokens, service_tier)
    else:
        price = price_of(model, prices)
    return price if price is None or modalities is None else of_modalities(price, modalities)


def _runs(prices: Sequence[PriceSettings | None]) -> Iterator[tuple[PriceSettings | None, list[int]]]:
    """Yield each price with the consecutive places that have it."""
    for _, run in groupby(enumerate(prices), key=lambda place: place[1]):
        places = list(run)
        yield places[0][1], [number for number, _ in places]


def _clock(midnight: datetime, halves: int) -> str:
    return "24:00" if halves == _HALF_HOURS else f"{midnight + halves * _HALF_HOUR:%H:%M}"


def _half_hour(seconds: float) -> int:
    return int(seconds // 1800)


def has_tier_price(model: str, prices: Mapping[str, PriceSettings], seconds: float, service_tier: str) -> bool:
    """Whether the price of a service tier is known; else its requests have the price of the standard tier."""
    return isinstance(prices, ModelPrices) and prices.tier_factor(model, service_tier, _moment(seconds)) is not None


def is_dated(seconds: float) -> bool:
    """Whether seconds count from the epoch: traces may count from their own start, and a log may have no times."""
    return seconds > _FIRST_PRICES


def _moment(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if is_dated(seconds) else None


def price_on(model: str, prices: Mapping[str, PriceSettings], day: str) -> PriceSettings | None:
    """Return the price of a short request at noon of a UTC day, such as 2026-11-21."""
    return price_at(model, prices, datetime.combine(date.fromisoformat(day), _NOON, UTC).timestamp(), 0)


def relative_prices(model: str) -> PriceSettings:
    """Return Anthropic's prices of a model as multiples of the price of uncached tokens."""
    rule = rule_of_marks(model)
    return PriceSettings(
        input=1.0,
        cached=rule.read_ratio,
        write_5m=rule.default_write_ratio,
        write_1h=rule.write_ratios.get("1h"),
        audio_input=1.0,
        audio_output=0.0,
    )


class RelativePrices(Mapping[str, PriceSettings]):
    """Prices as multiples of the price of uncached tokens, for each model; see `relative_prices`."""

    def __getitem__(self, model: str) -> PriceSettings:
        return relative_prices(model)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
