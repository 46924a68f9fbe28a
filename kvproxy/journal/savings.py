import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from kvproxy.index.evaluation.confidence_intervals import wilson_interval
from kvproxy.journal.prefill_cost import PrefillCost
from kvproxy.journal.prices import MILLION, input_price, storage_price
from kvproxy.journal.reader import CACHES, JournalReader, SavingsGroup
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.settings.cache import CacheSettings
from kvproxy.settings.journal import JournalSettings, PriceSettings, price_of


@dataclass(frozen=True, slots=True)
class WrongHitInterval:
    """Bounds of the share of semantic hits that are wrong, from 0 to 1, and a sentence about their source."""

    least: float
    most: float
    source: str


@dataclass(slots=True)
class Saving:
    """Savings of a group of requests.

    Attributes:
        answered: number of requests with a cached response.
        prompt_tokens, completion_tokens: tokens of the prompts of these requests, and of the cached responses.
        reused_tokens: prompt tokens that the backend reused.
        seconds: saved time: durations of original responses minus durations of hits, plus the prefill time of reused tokens.
        least_seconds, most_seconds: bounds of `seconds`; see `PrefillCost`.
        unmeasured_tokens: reused tokens of unknown prefill time, which `seconds` does not include.
        money: saved money; None if no model has a price.
        least_money: saved money if the share `WrongHitInterval.most` of the semantic hits saves nothing.
    """

    name: str
    requests: int = 0
    answered: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused_tokens: int = 0
    seconds: float = 0.0
    least_seconds: float = 0.0
    most_seconds: float = 0.0
    unmeasured_tokens: int = 0
    money: float | None = None
    least_money: float | None = None

    def add_money(self, money: float, least: float) -> None:
        self.money = (self.money or 0.0) + money
        self.least_money = (self.least_money or 0.0) + least


@dataclass(frozen=True, slots=True)
class SavingsReport:
    """Savings by group.

    Attributes:
        total: None for tags, because a request may have several tags.
        refused: number of requests that the proxy refused; no group counts them.
    """

    rows: list[Saving]
    total: Saving | None
    wrong: WrongHitInterval | None
    currency: str
    refused: int = 0


def savings_report(
    reader: JournalReader,
    by: SavingsGroup,
    journal: JournalSettings,
    counts: Mapping[str, int] | None,
    settings: CacheSettings,
    since: float | None = None,
) -> SavingsReport:
    """Return the savings by group and their total.

    Args:
        counts: numbers of compared semantic hits, from `Observations.summary`; None without a store.
        since: seconds before now; the UTC day of that time is the first to count. None counts all days.
    """
    wrong = _wrong_interval(counts, settings)
    rows = savings(reader, by, journal.prices, wrong, first_day(since))
    refused = sum(row.requests for row in reader.totals("layer", first_day(since)) if row.layer == "refused")
    return SavingsReport(rows, _sum_savings(rows) if by != "tag" else None, wrong, journal.currency, refused)


def first_day(since: float | None) -> str | None:
    """Return the UTC day of the time `since` seconds ago, such as 2026-11-21."""
    return None if since is None else datetime.fromtimestamp(time.time() - since, UTC).date().isoformat()


def savings(
    reader: JournalReader,
    by: SavingsGroup,
    prices: Mapping[str, PriceSettings],
    wrong_interval: WrongHitInterval | None = None,
    since: str | None = None,
) -> list[Saving]:
    """Return the savings of each group, the largest first, or in order of time for days.

    `since` is the first day to count, such as 2026-11-21; None counts all days.
    """
    found: dict[str, Saving] = {}
    costs = reader.prefill_costs()
    for row in reader.totals(by, since):
        price = price_of(row.model, prices)
        if row.layer == "warming":
            if price is not None:
                paid = input_price(price, row.prompt_tokens, row.reused_tokens, 0, 0)
                paid += row.completion_tokens * price.output / MILLION
                found.setdefault(row.name, Saving(row.name)).add_money(-paid, -paid)
            continue
        if row.layer == "refused":
            continue
        saving = found.setdefault(row.name, Saving(row.name))
        saving.requests += row.requests
        saving.reused_tokens += row.reused_tokens
        cost = costs.get(row.model, PrefillCost(0.0, 0.0, 0.0))
        saving.seconds += row.saved_seconds + row.reused_tokens * cost.seconds
        saving.least_seconds += row.saved_seconds + row.reused_tokens * cost.least
        saving.most_seconds += row.saved_seconds + row.reused_tokens * cost.most
        saving.unmeasured_tokens += 0 if row.model in costs else row.reused_tokens
        is_hit = row.layer in CACHES
        if is_hit:
            saving.answered += row.requests
            saving.prompt_tokens += row.prompt_tokens
            saving.completion_tokens += row.completion_tokens
        if price is not None:
            reuse = row.reused_tokens * (price.input - price.price_of_reuse) / MILLION
            answers = is_hit * (row.prompt_tokens * price.input + row.completion_tokens * price.output) / MILLION
            wrong = wrong_interval.most if wrong_interval is not None and row.layer == "semantic" else 0.0
            saving.add_money(reuse + answers, reuse + answers * (1 - wrong))
    _subtract_writes(reader, by, prices, since, found)
    order = sorted(found.values(), key=lambda each: each.name)
    if by == "day":
        return order
    return sorted(order, key=lambda each: (each.money or 0.0, each.seconds, each.prompt_tokens), reverse=True)


def _subtract_writes(
    reader: JournalReader, by: str, prices: Mapping[str, PriceSettings], since: str | None, found: dict[str, Saving]
) -> None:
    if by == "tag":
        return
    rows = SessionReader(reader, prices).provider_writes("'prefix'" if by == "layer" else by, since)
    for name, model, short, long, hours in rows:
        price = price_of(model, prices)
        if price is not None:
            paid = (
                short * (price.price_of_5m_write - price.input) + long * (price.price_of_1h_write - price.input)
            ) / MILLION
            paid += storage_price(price, hours)
            found.setdefault(name, Saving(name)).add_money(-paid, -paid)


def _wrong_interval(counts: Mapping[str, int] | None, settings: CacheSettings) -> WrongHitInterval | None:
    if not settings.semantic:
        return None
    if counts is not None and counts["accepted"]:
        wrong, compared = counts["accepted_wrong"], counts["accepted"]
        return WrongHitInterval(
            *wilson_interval(wrong, compared),
            f"{wrong:,} of {compared:,} hits compared with a fresh response were wrong",
        )
    if settings.policy == "learned":
        return WrongHitInterval(0.0, settings.max_error, "the policy's bound, cache.max_error")
    return None


def _sum_savings(rows: Sequence[Saving]) -> Saving:
    total = Saving("all")
    for row in rows:
        for name in (each.name for each in fields(Saving)[1:-2]):
            setattr(total, name, getattr(total, name) + getattr(row, name))
        if row.money is not None:
            total.add_money(row.money, row.least_money or 0.0)
    return total
