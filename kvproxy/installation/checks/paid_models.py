"""The check of `kvproxy doctor` that the rules and the prices of paid models are known and up to date."""

from datetime import UTC, date, datetime

from kvproxy.errors import NotFound
from kvproxy.installation.checks.servers import CheckWarning
from kvproxy.journal.reader import JournalReader
from kvproxy.providers.cache_rules import CACHE_RULES, cache_rule
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import Settings
from kvproxy.settings.journal import LIST_CURRENCY, price_of
from kvproxy.units import first_names, plural

_MAX_NAMES = 5


def check_paid_models(settings: Settings, today: date | None = None) -> str:
    """Return how many rules are known. Raises CheckWarning for an outdated rule, or a model without a rule or a price.

    Only models behind https URLs are checked, because local servers have no prices.
    """
    outdated = [rule for rule in CACHE_RULES if rule.is_outdated(today or datetime.now(UTC).date())]
    prices, models = ModelPrices(settings.journal), _paid_models(settings)
    unruled = [model for model in models if cache_rule(model) is None and not _has_own_rule(model, settings)]
    unpriced = [model for model in models if model not in prices]
    advice = []
    if outdated:
        oldest = min(rule.verified for rule in outdated)
        advice.append(
            f"{plural(len(outdated), 'rule')} of paid APIs are more than six months old (the oldest: {oldest}): update kvproxy"
        )
    if unruled:
        advice.append(
            f"no cache rule is known for {first_names(unruled, _MAX_NAMES)}: set least_cached_tokens and ttl in"
            f" {_section(unruled[0])}, or update kvproxy"
        )
    if unpriced:
        names = first_names(unpriced, _MAX_NAMES)
        advice.append(f"no price is known for {names}: set {_section(unpriced[0])}, or {_source(settings)}")
    if advice:
        raise CheckWarning("; ".join(advice))
    verified = min(rule.verified for rule in CACHE_RULES)
    return f"{len(CACHE_RULES)} cache rules of paid APIs, verified on {verified} or later; {_prices_text(settings)}"


def _prices_text(settings: Settings) -> str:
    configured = {name for name, price in settings.journal.prices.items() if price.has_prices}
    if "*" in configured:
        return 'each model has a price of [journal.prices], because "*" replaces all list prices'
    own = f"{plural(len(configured), 'price')} of [journal.prices]"
    if not settings.journal.has_list_prices:
        return f"only {own}, because list prices are in {LIST_CURRENCY}"
    return f"list prices, and {own}" if configured else "list prices"


def _paid_models(settings: Settings) -> list[str]:
    try:
        reader = JournalReader(settings.journal_location)
    except NotFound:
        return []
    try:
        sql = "select distinct model from requests where upstream like 'https://%' and model is not null order by 1"
        return [str(model) for (model,) in reader.rows(sql, [])]
    finally:
        reader.close()


def _has_own_rule(model: str, settings: Settings) -> bool:
    price = price_of(model, settings.journal.prices)
    return price is not None and price.least_cached_tokens is not None and price.ttl is not None


def _source(settings: Settings) -> str:
    is_listed = settings.journal.has_list_prices
    return "run kvproxy prices update" if is_listed else f"set journal.usd_rate: list prices are in {LIST_CURRENCY}"


def _section(model: str) -> str:
    return f'[journal.prices."{model}"]'
