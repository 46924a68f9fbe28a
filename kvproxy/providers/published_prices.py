"""The providers' published prices of models, from the package `genai-prices`, in US dollars."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvproxy.providers.cache_rules import cache_rule
from kvproxy.providers.model_names import host_prefixes, spellings, split_host
from kvproxy.providers.price_list import load_price_list
from kvproxy.settings.journal import PriceSettings

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, PriceVariant

_NOON = time(12)
_MODALITIES = {
    "audio_input": "input_audio_mtok",
    "audio_output": "output_audio_mtok",
    "image_input": "input_image_mtok",
    "image_output": "output_image_mtok",
}
_PRICED = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok", "output_mtok")
# Names of a service tier in the price list: of OpenAI and Gemini, of batches, and of Anthropic's fast mode.
_TIER_FIELDS = ("service_tier", "processing", "speed")
_STANDARD = "default"
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
            Before its first listed price, it has the multiple of the standard price that it has then: the list has the prices
            of many tiers only from October 2026 on.
    """
    rule, provider = cache_rule(model), provider_of(model)
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
        if standard is not None and (first := _first_day(model, provider, service_tier, now, price_list)) is not None:
            then, own = (list_price(model, first, prompt_tokens, price_list, tier) for tier in (None, service_tier))
            return standard if then is None or own is None else _multiplied(standard, then, own)
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
        **_modality_prices(provider, uncached, output, {name: usd(field) for name, field in _MODALITIES.items()}),
    )


def _modality_prices(
    provider: str, uncached: float, output: float, listed: dict[str, float | None]
) -> dict[str, float | None]:
    # Google lists a price of audio only if it differs from that of text.
    defaults = {"audio_input": uncached, "audio_output": output} if provider == "google" else {}
    return {name: defaults.get(name) if price is None else price for name, price in listed.items()}


def published_tier_factor(
    model: str,
    service_tier: str,
    moment: datetime | None = None,
    prompt_tokens: int = 0,
    price_list: Path | None = None,
) -> float | None:
    """Return the published price of a service tier as a multiple of the standard price of input; None if unknown."""
    provider = provider_of(model)
    if provider is None:
        return None
    now = datetime.now(UTC) if moment is None else moment
    half_hour = now.replace(minute=now.minute // 30 * 30, second=0, microsecond=0)
    first = _first_day(model, provider, service_tier, now, price_list)
    if first is None and _listed_prices(model, provider, half_hour, price_list, service_tier) is None:
        return _half_price(provider, service_tier)
    standard, own = (list_price(model, moment, prompt_tokens, price_list, tier) for tier in (None, service_tier))
    return own.input / standard.input if own is not None and standard is not None and standard.input else None


def has_list_price(model: str, service_tier: str, price_list: Path | None = None) -> bool:
    """Whether the list has present prices of a service tier, which may differ from a factor of the standard price."""
    provider = provider_of(model)
    return provider is not None and _listed_prices(model, provider, noon_today(), price_list, service_tier) is not None


def _first_day(
    model: str, provider: str, service_tier: str, moment: datetime, price_list: Path | None
) -> datetime | None:
    """Return noon of the day on which the list has the first price of a service tier, if it is after a moment; else None."""
    from genai_prices.types import StartDateConstraint

    variants = _tier_variants(_listed_model(model, provider, price_list), service_tier)
    constraints = [variant.constraint for variant in variants]
    starts = [each.start_date for each in constraints if isinstance(each, StartDateConstraint)]
    if not starts or len(starts) < len(constraints) or min(starts) <= moment.date():
        return None
    return datetime.combine(min(starts), _NOON, UTC)


def _multiplied(standard: PriceSettings, then: PriceSettings, own: PriceSettings) -> PriceSettings:
    """Return the price of a service tier that is the same multiple of the standard price as `own` is of `then`."""
    known = {name: price for name, price in own.model_dump().items() if isinstance(price, float)}
    earlier = {name: (getattr(standard, name), getattr(then, name)) for name in known}
    multiplied = {
        name: known[name] * before / after for name, (before, after) in earlier.items() if before is not None and after
    }
    return standard.model_copy(update=multiplied)


def _half_price(provider: str, service_tier: str) -> float | None:
    """Return the factor of a tier of the provider's price page that the list lacks for a model; None without one."""
    return 0.5 if service_tier in _HALF_PRICE.get(provider, ()) else None


def _without_weekend_peaks(moment: datetime) -> datetime:
    is_weekend = moment >= _FIRST_WEEKEND and moment.astimezone(_BEIJING).weekday() >= _SATURDAY
    return datetime.combine(moment.date(), _NOON, UTC) if is_weekend else moment


def listed_models(price_list: Path | None = None) -> Iterator[str]:
    """Yield the names by which models of the list are found; with the name of the host if no shorter name is."""
    for provider in _snapshot(price_list).providers:
        for listed_model in provider.models:
            names = (listed_model.id, *(f"{prefix}/{listed_model.id}" for prefix in host_prefixes(provider.id)))
            found = (name for name in names if _finds(name, listed_model, price_list))
            if (name := next(found, None)) is not None:
                yield name


def _finds(name: str, listed_model: "ModelInfo", price_list: Path | None) -> bool:
    provider = provider_of(name)
    return provider is not None and _listed_model(name, provider, price_list) is listed_model


def _snapshot(price_list: Path | None) -> "DataSnapshot":
    from genai_prices.data_snapshot import get_snapshot

    return get_snapshot() if price_list is None else load_price_list(price_list)


@lru_cache(maxsize=4_096)
def least_priced_otherwise(model: str, price_list: Path | None = None) -> int | None:
    """Return the least prompt tokens of requests whose list price may differ from `price_on`: 0 if the price has hours.

    None if no request has another price on the same day.
    """
    provider = provider_of(model)
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


def tier_starts(model: str, price_list: Path | None) -> list[int]:
    provider = provider_of(model)
    return [] if provider is None else _starts(_listed_prices(model, provider, noon_today(), price_list))


def listed_tiers(model: str, price_list: Path | None) -> set[str]:
    """Return the names of service tiers of which the list or the provider's price page has prices, also past ones."""
    provider = provider_of(model)
    if provider is None or (listed_model := _listed_model(model, provider, price_list)) is None:
        return set()
    conditions = [variant.when for variant in listed_model.price_variants or () if len(variant.when) == 1]
    names = {value for when in conditions for name, value in when.items() if name in _TIER_FIELDS}
    return {*names, *_HALF_PRICE.get(provider, ())} - {_STANDARD}


def noon_today() -> datetime:
    return datetime.combine(datetime.now(UTC).date(), _NOON, UTC)


def _starts(listed: object) -> list[int]:
    """Return the numbers of prompt tokens above which a list price changes, in order."""
    return sorted({tier.start for name in _PRICED for tier in getattr(getattr(listed, name, None), "tiers", ())})


def provider_of(model: str) -> str | None:
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
    is_priced = any(
        variant.constraint is None or variant.constraint.active(moment)
        for variant in _tier_variants(listed_model, service_tier)
    )
    return listed_model.get_prices(moment, _tier_context(service_tier)) if is_priced else None


def _tier_variants(listed_model: "ModelInfo | None", service_tier: str) -> "list[PriceVariant]":
    """Return the prices of a service tier that the list has for some time."""
    variants = () if listed_model is None else listed_model.price_variants or ()
    context = _tier_context(service_tier)
    return [
        variant
        for variant in variants
        if all(context.get(name) == value for name, value in variant.when.items())
        and any(getattr(variant.prices, name, None) is not None for name in _PRICED)
    ]


def _tier_context(service_tier: str) -> dict[str, str]:
    return dict.fromkeys(_TIER_FIELDS, service_tier)


@lru_cache(maxsize=4_096)
def _listed_model(model: str, provider: str, price_list: Path | None) -> "ModelInfo | None":
    """Return a model of the price list; None if it is unknown."""
    snapshot = _snapshot(price_list)
    for listing, name in _listed_names(model, provider):
        models = _models_by_name(listing, price_list)
        for spelling in spellings(name):
            if (named := models.get(spelling.lower())) is not None:
                return named
            if models and _without_revision(spelling) not in models:
                continue
            try:
                _, listed_model = snapshot.find_provider_model(spelling, None, listing, None)
            except LookupError:
                continue
            names = {listed_model.id, *_names(listed_model.match)}
            # The package also matches by the beginning of a name, so a new model would get the price of an earlier one.
            if _without_revision(spelling) in {_without_revision(name) for name in names}:
                return listed_model
    return None


@lru_cache(maxsize=256)
def _models_by_name(provider: str, price_list: Path | None) -> "Mapping[str, ModelInfo | None]":
    """Return the models that a provider's list names in full, and None for the other names that a search may find.

    The package's search compares a name with all names of the list.
    """
    providers = {each.id: each for each in _snapshot(price_list).providers}
    if (own := providers.get(provider)) is None:
        return {}
    models: dict[str, ModelInfo | None] = {}
    for listed_model in own.models:
        for name in _full_names(listed_model.match):
            models.setdefault(name, listed_model)
    for name in (own.id, *(own.fallback_model_providers or ())):
        for listed_model in providers[name].models if name in providers else ():
            for other in (listed_model.id, *_names(listed_model.match)):
                models.setdefault(_without_revision(other), None)
    return models


def _full_names(clause: object) -> Iterator[str]:
    from genai_prices.types import ClauseEquals, ClauseOr

    if isinstance(clause, ClauseEquals):
        yield clause.equals.lower()
    elif isinstance(clause, ClauseOr):
        for subclause in clause.or_:
            yield from _full_names(subclause)


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
