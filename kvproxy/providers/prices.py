"""Prices of models: those of the settings, else the providers' list prices from the package `genai-prices`."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvproxy.providers.cache_rules import cache_rule, cache_rule_or_assumption, rule_of_marks
from kvproxy.providers.model_names import spellings, split_host
from kvproxy.providers.price_list import load_price_list
from kvproxy.settings.journal import JournalSettings, PriceSettings, price_of

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

_FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_PRICES = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
_NOON = time(12)
_MAX_SEARCHED = 4_096  # Models and half hours.
_PRICED = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok", "output_mtok")
# Names of a service tier in the price list: of OpenAI and Gemini, of batches, and of Anthropic's fast mode.
_TIER_FIELDS = ("service_tier", "processing", "speed")
# Tiers at half of the standard price. Sources: the providers' price pages, November 2026.
_HALF_PRICE = {"openai": ("flex", "batch"), "anthropic": ("batch",), "google": ("flex", "batch"), "mistral": ("batch",)}
# Starts of the names of embedding models, by provider; no provider caches their prompts.
_EMBEDDING_MODELS = {"openai": "text-embedding-", "google": "gemini-embedding-", "mistral": "mistral-embed"}
# From this day on, DeepSeek bills V4 at the lower price on weekends in Beijing. Source: api-docs.deepseek.com, October 2026.
_FIRST_WEEKEND = datetime(2026, 8, 22, 16, tzinfo=UTC)
_BEIJING = timezone(timedelta(hours=8))
_SATURDAY = 5
_DEEPSEEK_V4 = ("deepseek-v4", "deepseek-flash")
# Dates and revisions, such as -20251101, -2026-07-01, -latest, @20251101, -v1:0, -preview-05-06, and -001.
_REVISION = re.compile(
    r"(?:[-@](?:\d{8}|\d{4}-\d\d-\d\d|latest|default|preview(?:-\d\d-\d(?:\d|\d{3}))?|\d{3,4}|v\d+(?::\d+)?))+$"
)


class ModelPrices(Mapping[str, PriceSettings]):
    """Prices by model, in the currency of the settings.

    A price of the settings has precedence, by name, then by pattern. Its missing prices of cached and written tokens have the
    published ratio of the provider to the price of input. The list prices are in US dollars, so they apply only if the
    settings have this currency or its rate. A model without either has no price. Iteration yields the names and patterns of
    the settings.
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

    def tiers(self, model: str) -> list[tuple[int, PriceSettings]]:
        """Return the present prices with the numbers of prompt tokens above which they apply; empty without a price."""
        starts = [0] if self.source_of(model) != "list" else [0, *_tier_starts(model, self.price_list)]
        priced = ((start, self.at(model, None, start + 1)) for start in starts)
        return [(start, price) for start, price in priced if price is not None]

    def later(self, model: str) -> list[tuple[str, PriceSettings]]:
        """Return the later prices of the settings with the UTC days on which they start, such as 2026-12-01."""
        price, today = price_of(model, self._configured) or PriceSettings(), datetime.now(UTC).date().isoformat()
        later = [(day, price.on(day)) for day in sorted(price.changes) if day > today]
        return [(day, _with_published_ratios(model, dated)) for day, dated in later if dated.has_prices]

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


def shortest_cached_prefix(model: str, prices: Mapping[str, PriceSettings]) -> int:
    """Return the tokens of the shortest prefix that the provider caches: of the settings, else published; 0 if unknown."""
    rule, price = cache_rule(model), price_of(model, prices)
    if price is not None and price.least_cached_tokens is not None:
        return price.least_cached_tokens
    return 0 if rule is None else rule.minimum_tokens or 0


def list_price(
    model: str,
    moment: datetime | None = None,
    prompt_tokens: int = 0,
    price_list: Path | None = None,
    service_tier: str | None = None,
) -> PriceSettings | None:
    """Return the list price of a model in US dollars per million tokens; None if it is unknown.

    The first call loads the package, which takes half a second.

    Args:
        moment: time of the request, because prices change, for some providers by the hour; by default noon UTC of this day.
        prompt_tokens: length of the prompt, because long ones may cost more.
        price_list: file with prices; None for the prices of the package.
        service_tier: tier that served the request; without a known price it has that of the standard tier, which is None.
    """
    rule, provider = cache_rule(model), _provider_of(model)
    if provider is None:
        return None
    now = datetime.now(UTC).replace(hour=12) if moment is None else moment
    if _DEEPSEEK_V4[0] in model or _DEEPSEEK_V4[1] in model:
        now = _without_weekend_peaks(now)
    # The hours of a price begin and end at half hours.
    half_hour = now.replace(minute=now.minute // 30 * 30, second=0, microsecond=0)
    listed = _listed_prices(model, provider, half_hour, price_list, service_tier)
    if listed is None and service_tier is not None:
        standard = list_price(model, moment, prompt_tokens, price_list)
        factor = _half_price(provider, service_tier)
        return standard if standard is None or factor is None else standard.scaled(factor)

    def usd(name: str, ratio: float | None = None) -> float | None:
        value = getattr(listed, name, None)
        tiers = [tier.price for tier in getattr(value, "tiers", ()) if prompt_tokens > tier.start]
        value = tiers[-1] if tiers else getattr(value, "base", value)
        if value is not None:
            return float(value)
        return None if ratio is None or uncached is None else uncached * ratio

    uncached = usd("input_mtok")
    if uncached is not None and _embedding_provider(model) is not None:
        return PriceSettings(input=uncached)
    output = usd("output_mtok")
    if uncached is None or output is None:
        return None
    # Hosts of open weights publish no rule of their cache.
    read, short, long = (
        (None, None, None) if rule is None else (rule.read_ratio, rule.default_write_ratio, rule.write_ratios.get("1h"))
    )
    return PriceSettings(
        input=uncached,
        output=output,
        cached=usd("cache_read_mtok", read),
        write_5m=usd("cache_write_mtok", short),
        write_1h=usd("cache_write_1h_mtok", long),
    )


def published_tier_factor(
    model: str,
    service_tier: str,
    moment: datetime | None = None,
    prompt_tokens: int = 0,
    price_list: Path | None = None,
) -> float | None:
    """Return the published price of a service tier as a multiple of the standard price of input; None if unknown."""
    provider = _provider_of(model)
    if provider is None:
        return None
    now = datetime.now(UTC) if moment is None else moment
    half_hour = now.replace(minute=now.minute // 30 * 30, second=0, microsecond=0)
    if _listed_prices(model, provider, half_hour, price_list, service_tier) is None:
        return _half_price(provider, service_tier)
    standard, own = (list_price(model, moment, prompt_tokens, price_list, tier) for tier in (None, service_tier))
    return own.input / standard.input if own is not None and standard is not None and standard.input else None


def _half_price(provider: str, service_tier: str) -> float | None:
    """Return the factor of a tier of the provider's price page that the list lacks for a model; None without one."""
    return 0.5 if service_tier in _HALF_PRICE.get(provider, ()) else None


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


def _without_weekend_peaks(moment: datetime) -> datetime:
    is_weekend = moment >= _FIRST_WEEKEND and moment.astimezone(_BEIJING).weekday() >= _SATURDAY
    return datetime.combine(moment.date(), _NOON, UTC) if is_weekend else moment


def price_at(
    model: str,
    prices: Mapping[str, PriceSettings],
    seconds: float,
    prompt_tokens: int,
    service_tier: str | None = None,
) -> PriceSettings | None:
    """Return the price of a request at a time in seconds since the epoch; see `list_price`."""
    if isinstance(prices, ModelPrices):
        return prices.at(model, _moment(seconds), prompt_tokens, service_tier)
    return price_of(model, prices)


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


@lru_cache(maxsize=4_096)
def least_priced_otherwise(model: str, price_list: Path | None = None) -> int | None:
    """Return the least prompt tokens of requests whose list price may differ from `price_on`: 0 if the price has hours.

    None if no request has another price on the same day.
    """
    provider = _provider_of(model)
    if provider is None:
        return None
    from genai_prices.types import TimeOfDateConstraint

    periods = _price_periods(model, provider, price_list)
    if any(isinstance(constraint, TimeOfDateConstraint) for constraint, _ in periods):
        return 0
    starts = [start for _, listed in periods for start in _starts(listed)]
    return min(starts) + 1 if starts else None


def _price_periods(model: str, provider: str, price_list: Path | None) -> list[tuple[object, object]]:
    """Return the list prices of all dates and hours, each with its constraint; empty if the model is unknown."""
    listed_model = _listed_model(model, provider, price_list)
    if listed_model is None:
        return []
    prices = listed_model.prices
    return [(each.constraint, each.prices) for each in prices] if isinstance(prices, list) else [(None, prices)]


def _tier_starts(model: str, price_list: Path | None) -> list[int]:
    provider, noon = _provider_of(model), datetime.combine(datetime.now(UTC).date(), _NOON, UTC)
    return [] if provider is None else _starts(_listed_prices(model, provider, noon, price_list))


def _starts(listed: object) -> list[int]:
    """Return the numbers of prompt tokens above which a list price changes, in order."""
    return sorted({tier.start for name in _PRICED for tier in getattr(getattr(listed, name, None), "tiers", ())})


def _provider_of(model: str) -> str | None:
    """Return the provider whose list has the model's price.

    None for open weights without the name of their host, which may run on other servers.
    """
    rule = cache_rule(model)
    return split_host(model)[0] or _embedding_provider(model) or (None if rule is None else rule.provider)


def _embedding_provider(model: str) -> str | None:
    name = split_host(model)[1].rpartition("/")[2]
    return next((provider for provider, start in _EMBEDDING_MODELS.items() if name.startswith(start)), None)


def _listed_names(model: str, provider: str) -> Iterator[tuple[str, str]]:
    """Yield lists that may have the price of a model, and its name there; gateways have prices of their own."""
    host, name = split_host(model)
    if "/" in model:
        yield "openrouter", model
    if "anthropic." in name:
        yield "aws", name
    elif "@" in name:
        yield "google", name
    yield provider, name
    if host is None:
        yield provider, name.rpartition("/")[2]


@lru_cache(maxsize=4_096)
def _listed_prices(
    model: str, provider: str, moment: datetime, price_list: Path | None, service_tier: str | None = None
) -> object:
    """Return the list prices; None if the model is unknown, or has no prices of its own for a service tier."""
    listed_model = _listed_model(model, provider, price_list)
    if listed_model is None:
        return None
    if service_tier is None:
        return listed_model.get_prices(moment)
    context = dict.fromkeys(_TIER_FIELDS, service_tier)
    is_priced = any(
        (variant.constraint is None or variant.constraint.active(moment))
        and all(context.get(name) == value for name, value in variant.when.items())
        and any(getattr(variant.prices, name, None) is not None for name in _PRICED)
        for variant in listed_model.price_variants or ()
    )
    return listed_model.get_prices(moment, context) if is_priced else None


@lru_cache(maxsize=4_096)
def _listed_model(model: str, provider: str, price_list: Path | None) -> "ModelInfo | None":
    """Return a model of the price list; None if it is unknown."""
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot() if price_list is None else load_price_list(price_list)
    for listing, name in _listed_names(model, provider):
        for spelling in spellings(name):
            try:
                _, listed_model = snapshot.find_provider_model(spelling, None, listing, None)
            except LookupError:
                continue
            names = {listed_model.id, *_names(listed_model.match)}
            # The package also matches by the beginning of a name, so a new model would get the price of an earlier one.
            if _without_revision(spelling) in {_without_revision(name) for name in names}:
                return listed_model
    return None


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
        for subclause in clause:
            yield from _names(subclause)
    elif is_dataclass(clause):
        for member in fields(clause):
            yield from _names(getattr(clause, member.name))


def _without_revision(name: str) -> str:
    return _REVISION.sub("", name.lower())
