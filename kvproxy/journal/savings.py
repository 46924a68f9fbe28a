import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from kvproxy.index.evaluation.confidence_intervals import wilson_interval
from kvproxy.journal.prefill_cost import PrefillCost
from kvproxy.journal.prices import MILLION, input_price, storage_price
from kvproxy.journal.reader import BACKEND, CACHES, JournalReader, SavingsGroup, TotalRow
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.settings.journal import JournalSettings, PriceSettings, price_of


@dataclass(frozen=True, slots=True)
class WrongHitInterval:
    """The 95% interval of the share of semantic hits that are wrong, and a sentence that states its source."""

    least: float
    most: float
    source: str


@dataclass(frozen=True, slots=True)
class CachedShare:
    """Bounds of the share of prompt tokens that the provider's own prefix cache reuses, from 0 to 1."""

    least: float = 0.0
    most: float = 1.0


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
        money: saved money, with `cached_tokens` at the price of reuse; None if no model has a price.
        least_money: the same with the largest plausible numbers of cached tokens and of wrong hits, which save nothing.
        cached_tokens: prompt tokens of hits that the provider would have reused; see `CachedShare`.
        uncertain_tokens: prompt tokens of hits with an uncertain share of cached tokens; `money` assumes the lowest share.
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
    cached_tokens: int = 0
    uncertain_tokens: int = 0

    def add_money(self, money: float, least: float) -> None:
        self.money = (self.money or 0.0) + money
        self.least_money = (self.least_money or 0.0) + least


@dataclass(frozen=True, slots=True)
class SavingsReport:
    """Savings by group.

    Attributes:
        total: None for tags, because a request may have several tags.
        wrong: estimated share of wrong semantic hits; None if no hit was compared with a fresh response.
        refused: number of requests that the proxy refused; no group counts them.
        semantic: number of semantic hits.
    """

    rows: list[Saving]
    total: Saving | None
    wrong: WrongHitInterval | None
    currency: str
    refused: int = 0
    semantic: int = 0


def savings_report(
    reader: JournalReader,
    by: SavingsGroup,
    journal: JournalSettings,
    counts: Mapping[str, int] | None,
    since: float | None = None,
) -> SavingsReport:
    """Return the savings by group and their total.

    Args:
        counts: numbers of compared semantic hits, from `Observations.summary`; None without a store.
        since: seconds before now; the UTC day of that time is the first to count. None counts all days.
    """
    wrong = _wrong_hit_interval(counts)
    rows = savings(reader, by, journal.prices, wrong, first_utc_day(since))
    layers = Counter[str]()
    for row in reader.totals("layer", first_utc_day(since)):
        layers[row.layer] += row.requests
    total = _sum_savings(rows) if by != "tag" else None
    return SavingsReport(rows, total, wrong, journal.currency, layers["refused"], layers["semantic"])


def first_utc_day(since: float | None) -> str | None:
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
    costs, shares = reader.prefill_costs(), _cached_shares(reader)
    for row in reader.totals(by, since):
        price = price_of(row.model, prices)
        if row.layer == "warming":
            if price is not None:
                paid = _request_price(price, row, row.reused_tokens)
                found.setdefault(row.name, Saving(row.name)).add_money(-paid, -paid)
            continue
        if row.layer == "refused":
            continue
        saving = found.setdefault(row.name, Saving(row.name))
        is_hit = row.layer in CACHES
        # A shared response has reused tokens, but they were reused once.
        reused = 0 if is_hit else row.reused_tokens
        saving.requests += row.requests
        saving.reused_tokens += reused
        cost = costs.get(row.model, PrefillCost(0.0, 0.0, 0.0))
        saving.seconds += row.saved_seconds + reused * cost.seconds
        saving.least_seconds += row.saved_seconds + reused * cost.least
        saving.most_seconds += row.saved_seconds + reused * cost.most
        saving.unmeasured_tokens += 0 if row.model in costs else reused
        if is_hit:
            saving.answered += row.requests
            saving.prompt_tokens += row.prompt_tokens
            saving.completion_tokens += row.completion_tokens
        if price is not None:
            if not is_hit:
                money = reused * (price.input - price.price_of_reuse) / MILLION
                saving.add_money(money, money)
                continue
            share = shares.get((row.tenant, row.model), CachedShare())
            if price.cached is not None:
                saving.cached_tokens += round(row.prompt_tokens * share.least)
            if share.least < share.most or (share.most and price.cached is None):
                saving.uncertain_tokens += row.prompt_tokens
            most, least = (
                _request_price(price, row, round(row.prompt_tokens * part)) for part in (share.least, share.most)
            )
            wrong = 0.0 if row.layer != "semantic" else 1.0 if wrong_interval is None else wrong_interval.most
            saving.add_money(most, least * (1 - wrong))
    _subtract_writes(reader, by, prices, since, found)
    order = sorted(found.values(), key=lambda each: each.name)
    if by == "day":
        return order
    return sorted(order, key=lambda each: (each.money or 0.0, each.seconds, each.prompt_tokens), reverse=True)


def _request_price(price: PriceSettings, row: TotalRow, cached: int) -> float:
    return input_price(price, row.prompt_tokens, cached, 0, 0) + row.completion_tokens * price.output / MILLION


def _cached_shares(reader: JournalReader) -> dict[tuple[str, str], CachedShare]:
    prompt, reused = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in reader.totals("tenant", None):
        if row.layer in BACKEND:
            prompt[row.tenant, row.model] += row.prompt_tokens
            reused[row.tenant, row.model] += row.reused_tokens
    sql = "select tenant, model, sum(tokens) from prompt_tokens where result = 'unreported' group by 1, 2"
    unreported = {(tenant, model): int(tokens) for tenant, model, tokens in reader.rows(sql, [])}
    return {
        key: CachedShare(reused[key] / tokens, min(1.0, (reused[key] + unreported.get(key, 0)) / tokens))
        for key, tokens in prompt.items()
        if tokens
    }


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


def _wrong_hit_interval(counts: Mapping[str, int] | None) -> WrongHitInterval | None:
    if counts is None or not counts["accepted"]:
        return None
    wrong, compared = counts["accepted_wrong"], counts["accepted"]
    source = f"95% interval; {wrong:,} of {compared:,} semantic hits compared with a fresh response were wrong"
    return WrongHitInterval(*wilson_interval(wrong, compared), source)


def _sum_savings(rows: Sequence[Saving]) -> Saving:
    total = Saving("all")
    for row in rows:
        for name in (each.name for each in fields(Saving)[1:]):
            values = [value for each in (total, row) if (value := getattr(each, name)) is not None]
            setattr(total, name, sum(values) if values else None)
    return total
