"""The time and money that the caches saved."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvproxy.journal.groups import SavingsGroup, SavingsKey
from kvproxy.journal.prefill_time import PrefillCost, prefill_costs
from kvproxy.journal.priced_requests import requests_with_other_prices
from kvproxy.journal.reader import OF_PROXY, JournalReader, TotalRow
from kvproxy.journal.saving import Saving, sum_savings
from kvproxy.journal.saving_groups import bill_name, client_of, grouped_totals, groups_of
from kvproxy.journal.sessions.cached_shares import cached_share_bounds
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.journal.spending import PaidRequest, recorded_requests
from kvproxy.journal.sums_filter import SumsFilter
from kvproxy.journal.wrong_hits import (
    HitVerdicts,
    WrongHitInterval,
    count_served_rejected,
    recorded_wrong_hits,
    wrong_hit_interval,
)
from kvproxy.layers import CACHES
from kvproxy.providers.prices import ModelPrices, price_on
from kvproxy.settings.journal import MILLION, JournalSettings, PriceSettings, hit_price, storage_price
from kvproxy.units import utc_day

_NO_SHARES = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SavingsReport:
    """Savings by group.

    Attributes:
        total: None for tags, because a request may have several tags.
        wrong: estimated share of wrong semantic hits; None if no hit was compared with a fresh response.
        refused: number of requests that the proxy refused; no group counts them.
        semantic: number of semantic hits.
        marked_wrong: number of responses that a person rejected, and that a recorded semantic hit of the selected requests
            received; None without a store.
    """

    rows: list[Saving]
    total: Saving | None
    wrong: WrongHitInterval | None
    currency: str
    refused: int = 0
    semantic: int = 0
    marked_wrong: int | None = None


def savings_report(
    reader: JournalReader,
    by: SavingsGroup,
    journal: JournalSettings,
    verdicts: HitVerdicts | None,
    selection: SumsFilter = SumsFilter(),
) -> SavingsReport:
    """Return the savings by group and their total.

    Args:
        verdicts: None without a store.
    """
    wrong = None if verdicts is None else wrong_hit_interval(verdicts.counts, is_of_all=selection == SumsFilter())
    rejected = () if verdicts is None else verdicts.rejected
    rows = savings(reader, by, ModelPrices(journal), wrong, selection, rejected)
    layers = Counter[str]()
    for row in reader.totals("layer", selection):
        layers[row.layer] += row.requests
    total = sum_savings(rows) if by != "tag" else None
    if total is not None:
        total.remove_unknown()
    marked = None if verdicts is None else count_served_rejected(reader, selection, rejected)
    return SavingsReport(rows, total, wrong, journal.currency, layers["refused"], layers["semantic"], marked)


def savings(
    reader: JournalReader,
    by: SavingsKey,
    prices: Mapping[str, PriceSettings],
    wrong_interval: WrongHitInterval | None = None,
    selection: SumsFilter = SumsFilter(),
    rejected: Collection[str] = (),
) -> list[Saving]:
    """Return the savings of each group, the largest first, or in order of time for days.

    Args:
        wrong_interval: its upper bound lowers the `least_money` of semantic hits; None lowers it to 0.
        rejected: ids of responses whose semantic hits saved nothing.
    """
    savings_by_name: dict[str, Saving] = {}
    costs, cached_shares = prefill_costs(reader), cached_share_bounds(reader)
    most_wrong = 1.0 if wrong_interval is None else wrong_interval.most
    wrong_hits = recorded_wrong_hits(reader, by, selection, rejected)
    for row in grouped_totals(reader, by, selection):
        saved_nothing = wrong_hits.get((row.name, row.model, row.tenant, row.day)) if row.layer == "semantic" else None
        if saved_nothing is not None:
            row = saved_nothing.without(row)
        price = price_on(row.model, prices, row.day)
        tokens = Tokens(row.prompt_tokens, row.completion_tokens, row.reused_tokens)
        estimated = row.estimated_prompt_tokens, row.estimated_completion_tokens
        paid = Tokens(row.prompt_tokens + estimated[0], row.completion_tokens + estimated[1], row.reused_tokens)
        shares = cached_shares.get((row.tenant, row.model, row.layer), _NO_SHARES)
        wrong = most_wrong if row.layer == "semantic" else 0.0
        if row.layer in OF_PROXY:
            if price is not None:
                saving = savings_by_name.setdefault(row.name, Saving(row.name))
                saving.add_cost(_spent_money(row.layer, price, paid))
                saving.estimated_requests += row.estimated
            continue
        if row.layer == "refused":
            continue
        saving = savings_by_name.setdefault(row.name, Saving(row.name))
        is_hit = row.layer in CACHES
        unknown = row.unreported - row.estimated
        # A shared response has reused tokens, but they were reused once.
        reused = 0 if is_hit else row.reused_tokens
        saving.requests += row.requests
        saving.standard_priced_requests += 0 if price is None else row.tiered
        saving.reused_tokens += reused
        cost = costs.get(row.model, PrefillCost(0.0, 0.0, 0.0))
        saving.add_seconds(row.saved_seconds, reused, cost)
        saving.unmeasured_tokens += 0 if row.model in costs else reused
        _add_partial_hits(saving, row, price)
        if is_hit:
            saving.answered += row.requests
            saving.wrong_hits += 0 if saved_nothing is None else saved_nothing.requests
            saving.unreported_hits += row.unreported
            saving.add_tokens(row.prompt_tokens, row.completion_tokens)
        elif row.layer == "plugin":
            # No backend computed it, and no tokens are known.
            continue
        else:
            saving.unreported_requests += unknown
            saving.estimated_requests += 0 if price is None else row.estimated
            saving.unpriced_requests += row.requests - unknown - row.unpaid if price is None else 0
        if 0 < unknown == row.requests:
            # Nothing is known about their money.
            continue
        if price is None:
            saving.unpriced_hits += row.requests - (saved_nothing.requests if saved_nothing else 0) if is_hit else 0
            saving.unpriced_reused_tokens += reused
            continue
        saving.add_money(*_saved_money(row.layer, price, tokens, shares, wrong), is_hit=is_hit)
        saving.add_spent(_spent_money(row.layer, price, paid))
        if is_hit:
            cached = [round(row.prompt_tokens * share) for share in shares]
            if price.cached is not None:
                saving.cached_tokens += cached[0]
                saving.priced_tokens += row.prompt_tokens
            if cached[0] < cached[1] or (cached[1] and price.cached is None):
                saving.uncertain_tokens += row.prompt_tokens
    _subtract_writes(reader, by, prices, selection, savings_by_name)
    _correct_prices(reader, by, prices, selection, savings_by_name, cached_shares, most_wrong, rejected)
    order = sorted(savings_by_name.values(), key=lambda group: group.name)
    for group in order:
        group.remove_unknown()
    if by == "day":
        return order
    return sorted(
        order, key=lambda group: (group.money or 0.0, group.seconds or 0.0, group.prompt_tokens or 0), reverse=True
    )


def _add_partial_hits(saving: Saving, row: TotalRow, price: PriceSettings | None) -> None:
    """Add the cached inputs of arrays whose other inputs the backend computed. No provider caches a part of an input."""
    known = row.partial_hits - row.unreported_partial_hits
    saving.partial_hits += row.partial_hits
    saving.unreported_hits += row.unreported_partial_hits
    saving.add_tokens(row.inputs_cached_tokens, 0)
    saving.unpriced_hits += known if price is None else 0
    if known and price is not None:
        money = hit_price(price, row.inputs_cached_tokens, 0, 0)
        saving.add_money(money, money, is_hit=True)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Numbers of tokens of requests. `reused` is a part of `prompt`."""

    prompt: int
    completion: int
    reused: int


def _saved_money(
    layer: str, price: PriceSettings, tokens: Tokens, shares: tuple[float, float], wrong: float
) -> tuple[float, float]:
    """Return the money that a layer saved, and the least that it saved if the share `wrong` of its hits is wrong.

    `shares` are bounds of the share of the prompt that the provider's cache would have reused.
    """
    if layer in OF_PROXY:
        paid = hit_price(price, tokens.prompt, tokens.reused, tokens.completion)
        return -paid, -paid
    if layer not in CACHES:
        money = tokens.reused * (price.input - price.price_of_reuse) / MILLION
        return money, money
    cached = [round(tokens.prompt * share) for share in shares]
    most, least = (hit_price(price, tokens.prompt, reused, tokens.completion) for reused in cached)
    # A discount that is not known could be the whole price.
    least -= cached[1] * price.input / MILLION if price.cached is None else 0.0
    return most, least * (1 - wrong)


def _spent_money(layer: str, price: PriceSettings, tokens: Tokens) -> float:
    return 0.0 if layer in CACHES else hit_price(price, tokens.prompt, tokens.reused, tokens.completion)


def _correct_prices(
    reader: JournalReader,
    by: SavingsKey,
    prices: Mapping[str, PriceSettings],
    selection: SumsFilter,
    savings_by_name: dict[str, Saving],
    cached_shares: Mapping[tuple[str, str, str], tuple[float, float]],
    most_wrong: float,
    rejected: Collection[str],
) -> None:
    """Add what requests with the price of an hour or of long prompts saved beyond the day's usual price."""
    if not isinstance(prices, ModelPrices):
        return
    unpriced = set[str]()
    for request, usual, own in requests_with_other_prices(reader, prices, selection):
        if request.layer == "semantic" and request.entry in rejected:
            continue
        tokens = Tokens(request.prompt_tokens, request.completion_tokens, request.reused_tokens)
        shares = cached_shares.get((request.tenant, request.model, request.layer), _NO_SHARES)
        wrong = most_wrong if request.layer == "semantic" else 0.0
        before, after = (
            (0.0, 0.0) if price is None else _saved_money(request.layer, price, tokens, shares, wrong)
            for price in (usual, own)
        )
        groups = groups_of(request, by)
        for name in groups:
            saving = savings_by_name.setdefault(name, Saving(name))
            if request.layer not in OF_PROXY:
                is_tiered = request.service_tier is not None or request.modalities is not None
                saving.standard_priced_requests -= is_tiered and request.has_own_price(prices)
            if not (request.prompt_tokens or request.completion_tokens):
                continue
            is_hit = request.layer in CACHES
            saving.add_money(after[0] - before[0], after[1] - before[1], is_hit=is_hit)
            spent = 0.0 if own is None else _spent_money(request.layer, own, tokens)
            saving.add_spent(spent - _spent_money(request.layer, usual, tokens))
            if own is None and request.layer not in OF_PROXY:
                saving.add_unpriced(request, is_hit=is_hit)
                unpriced.add(name)
        if request.prompt_tokens and not _writes_have_records(by, selection):
            name = "prefix" if by == "layer" else groups[0]
            usual_cost, own_cost = (
                0.0 if price is None else _write_surcharge(price, request.written_5m, request.written_1h)
                for price in (usual, own)
            )
            savings_by_name.setdefault(name, Saving(name)).add_cost(own_cost - usual_cost)
    for name in unpriced:
        savings_by_name[name].drop_rounding()


def _subtract_writes(
    reader: JournalReader,
    by: SavingsKey,
    prices: Mapping[str, PriceSettings],
    selection: SumsFilter,
    savings_by_name: dict[str, Saving],
) -> None:
    if _writes_have_records(by, selection):
        _subtract_recorded_writes(reader, by, prices, selection, savings_by_name)
        return
    for name, model, day, short, long, hours in _writes(SessionReader(reader, prices), by, selection):
        if (price := price_on(model, prices, day)) is not None:
            paid = _write_surcharge(price, short, long) + storage_price(price, hours)
            savings_by_name.setdefault(name, Saving(name)).add_cost(paid)


def _writes(
    sessions: SessionReader, by: SavingsKey, selection: SumsFilter
) -> Iterator[tuple[str, str, str, int, int, int]]:
    """Yield `SessionReader.provider_writes` by the name of a group of savings."""
    if by in ("team", "bill"):
        for team, tenant, model, day, short, long, hours in sessions.writes_by_team(selection):
            yield bill_name(day, team, tenant, model) if by == "bill" else team, model, day, short, long, hours
        return
    column = {"layer": "'prefix'", "client": "tenant"}.get(by, by)
    for group, model, day, short, long, hours in sessions.provider_writes(column, selection):
        yield client_of(group) if by == "client" else group, model, day, short, long, hours


def _writes_have_records(by: SavingsKey, selection: SumsFilter) -> bool:
    """Whether written tokens come from records, because their sums have no tags."""
    return by in ("tag", "project") or selection.tag is not None


def _subtract_recorded_writes(
    reader: JournalReader,
    by: SavingsKey,
    prices: Mapping[str, PriceSettings],
    selection: SumsFilter,
    savings_by_name: dict[str, Saving],
) -> None:
    selected = selection.tenant, selection.model, selection.team, selection.tag
    for request in recorded_requests(reader, *selection.times, *selected):
        price = request.price(prices)
        paid = 0.0 if price is None else _write_surcharge(price, *request.written) + request.storage_cost(price)
        for name in _groups_of_writes(request, by) if paid else ():
            savings_by_name.setdefault(name, Saving(name)).add_cost(paid)


def _groups_of_writes(request: PaidRequest, by: SavingsKey) -> Sequence[str]:
    if by == "tag":
        return request.tags
    names = {
        "layer": "prefix",
        "day": utc_day(request.time),
        "model": request.model,
        "tenant": request.tenant,
        "client": request.client,
        "team": request.team,
        "project": request.project,
    }
    return [names[by]]


def _write_surcharge(price: PriceSettings, written_5m: int, written_1h: int) -> float:
    """Return what writing tokens to the provider's cache costs beyond reading them without a cache."""
    paid = written_5m * (price.price_of_5m_write - price.input) + written_1h * (price.price_of_1h_write - price.input)
    return paid / MILLION
