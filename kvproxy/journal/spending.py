"""The cost of requests and of lost reuse."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvproxy.apis.modalities import without_region
from kvproxy.apis.request_directives import project_of
from kvproxy.journal.groups import COLUMN, STANDARD_TIER, Group, RequestGroup
from kvproxy.journal.reader import (
    OF_PROXY,
    PAID,
    PAID_COMPLETION,
    PAID_PROMPT,
    JournalReader,
    RecordFilter,
)
from kvproxy.journal.record import OF_TAG, OF_TENANT, Record
from kvproxy.journal.saving_groups import counted_tags, is_counted
from kvproxy.journal.sessions.ledger import CAUSES, losses_with_cost
from kvproxy.layers import CACHES
from kvproxy.providers.prices import is_dated, price_at
from kvproxy.providers.regional_prices import has_regions
from kvproxy.settings.journal import MILLION, PriceSettings, input_price, price_lost_per_token, storage_price
from kvproxy.units import letters_of, period_of_sum, tenant_name

if TYPE_CHECKING:
    from kvproxy.journal.sessions.session_reader import Turn

_REQUESTS = (
    f"select r.time, r.model, r.tenant, r.client, r.tags, r.team, r.reused_tokens, {PAID_PROMPT}, {PAID_COMPLETION},"
    " coalesce(r.estimated_prompt_tokens, r.estimated_completion_tokens),"
    f" r.service_tier, r.modalities, r.layer in {OF_PROXY},"
    f" t.written_5m, t.written_1h, t.pause, {', '.join(f't.{cause}' for cause in CAUSES)}"
    f" from requests r left join turns t on t.number = r.number where {PAID} and r.number >= ? and r.time >= ? and r.time < ?"
)
_HOUR = 3_600.0
_DAY = 86_400.0
_ROUNDING = 1e-6  # Logs round the money of each request; a share of their sum.


@dataclass(frozen=True, slots=True)
class PaidRequest:
    """A request that a provider answered, or several with the sum of their tokens.

    Attributes:
        time: arrival in seconds since the epoch.
        project, client, team: names; empty if unknown.
        prompt_tokens, completion_tokens: None if the provider did not report them, and there is no estimate.
        is_estimated: whether one of them is an estimate.
        reused_tokens, written_5m, written_1h: tokens read from the provider's cache, and written to it; None counts as 0.
        pause: seconds for which the provider stored the reused tokens; None counts as 0.
        lost: prompt tokens that were not reused, by cause; see `CAUSES`. None if the causes are unknown.
        service_tier: see `apis/service_tiers.py`; None for the standard tier.
        modalities: audio and image tokens, and the region, see `apis/modalities.py`; None without any.
        count: number of clients' requests; 0 for a request of the proxy itself, None if a report does not state it.
        period: seconds in which several requests arrived; 0 for one request.
        priced_length: prompt tokens that decide the price; None for the mean of the requests.
        logged_cost: money that a log states for them; None if it states none.
        is_of_local_day: the period is a day of an unknown time zone.
        logged_rounding: largest rounding error of `logged_cost`.
        provider: the provider whose report of usage has it; empty for other logs.
        columns: cells of its row in a log, by `letters_of` the heading.
    """

    time: float
    model: str
    project: str
    client: str
    prompt_tokens: int | None
    completion_tokens: int | None
    reused_tokens: int | None = None
    written_5m: int | None = None
    written_1h: int | None = None
    pause: float | None = None
    lost: Mapping[str, int] | None = field(default_factory=dict)
    tags: Sequence[str] = ()
    tenant: str = ""
    is_estimated: bool = False
    service_tier: str | None = None
    team: str = ""
    count: int | None = 1
    period: float = 0.0
    priced_length: int | None = None
    logged_cost: float | None = None
    modalities: str | None = None
    is_of_local_day: bool = False
    logged_rounding: float = 0.0
    provider: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def reused(self) -> int:
        return self.reused_tokens or 0

    @property
    def written(self) -> tuple[int, int]:
        """Tokens written to the provider's cache for five minutes, and for one hour."""
        return self.written_5m or 0, self.written_1h or 0

    @property
    def least_count(self) -> int:
        return 1 if self.count is None else self.count

    @property
    def moment(self) -> datetime | None:
        """The local time, or the time in UTC for the sum of a whole UTC day; None without a date."""
        if not is_dated(self.time):
            return None
        return datetime.fromtimestamp(self.time, UTC).astimezone(UTC if self.is_of_utc_day else None)

    @property
    def is_of_utc_day(self) -> bool:
        return self.period >= _DAY

    def group_name(self, by: str) -> str:
        """Return the name of the request's group in a field of `group_fields`, at `moment` for a period; empty if unknown."""
        match by:
            case "day" | "week" | "month" | "quarter":
                if (moment := self.moment) is None:
                    return self.columns.get(by, "")
                return period_of_sum(moment.date(), self.period, by)
            case "project":
                return self.project
            case "model":
                return self.model
            case "client":
                return self.client
            case "team":
                return self.team
            case "service_tier":
                return self.service_tier or STANDARD_TIER
            case "line_item":
                return ""
            case _:
                return self.columns.get(letters_of(by.removeprefix(COLUMN)), "")

    def price(self, prices: Mapping[str, PriceSettings]) -> PriceSettings | None:
        length = self.priced_length
        if length is None:
            length = (self.prompt_tokens or 0) // max(1, self.least_count)
        return price_at(self.model, prices, self.time, length, self.service_tier, self.modalities)

    def input_cost(self, price: PriceSettings) -> float:
        return input_price(price, self.prompt_tokens or 0, self.reused, *self.written) + self.storage_cost(price)

    def uncached_cost(self, price: PriceSettings) -> float:
        """Return the price of the prompt without a provider's cache."""
        return input_price(price, self.prompt_tokens or 0, 0, 0, 0)

    def storage_cost(self, price: PriceSettings) -> float:
        """Return the price of storing the reused tokens during the pause, as in Gemini."""
        return storage_price(price, self.reused * (self.pause or 0.0) / _HOUR)

    def output_cost(self, price: PriceSettings) -> float:
        return (self.completion_tokens or 0) * price.output / MILLION

    def cost(self, prices: Mapping[str, PriceSettings]) -> float | None:
        """Return the price of prompt and response; None if the model has no price, or one of their lengths is unknown."""
        price = self.price(prices)
        return None if price is None else self.cost_at(price)

    def cost_at(self, price: PriceSettings) -> float | None:
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.input_cost(price) + self.output_cost(price)

    def cost_as(self, model: str, prices: Mapping[str, PriceSettings]) -> float | None:
        """Return the cost of the same tokens at today's price of another model, with the same reuse; None if unknown."""
        modalities = self.modalities if has_regions(model) else without_region(self.modalities)
        return replace(self, model=model, time=0.0, modalities=modalities).cost(prices)

    def lost_costs(self, price: PriceSettings) -> dict[str, float] | None:
        """Return the money that reuse of the lost tokens would have saved, by cause; None if unknown."""
        known = None if self.lost is None else losses_with_cost(self.lost)
        if known is None:
            return None
        above = price_lost_per_token(price, self.prompt_tokens or 0, self.reused, *self.written)
        return {cause: above * count for cause, count in known.items()}


@dataclass(slots=True)
class Spending:
    """The cost of the requests of a group.

    Attributes:
        requests: requests of clients; the tokens and counts are theirs. Only the money includes requests of the proxy itself.
            None if a report of usage does not state their number; then the other counts are the least possible ones.
        input_tokens: all prompt tokens, including `reused_tokens` and `written_tokens` of the provider's cache.
        reused_tokens, written_tokens, output_tokens: None if no request reports them; as is `input_tokens`.
        lost: prompt tokens that were not reused, by cause; see `CAUSES`.
        lost_costs: the money that their reuse would have saved, by cause. `lost_cost` is the sum.
        cost: money; None if no model has a price. The sum of `input_cost`, of which `lost_cost` is a part, and `output_cost`.
        proxy_requests, proxy_cost: number of requests of the proxy itself, such as keep-warm requests, and their part of `cost`.
        uncached_cost: price of the input without a provider's cache, to compare with `input_cost`; without one, the proxy would
            send no requests that keep prefixes cached.
        unpriced: number of requests that a model without a price answered, which the money excludes.
        unreported: number of requests without reported or estimated usage, which tokens and money exclude.
        incomplete: number of requests of which only input or only output is known; tokens and money exclude the other.
        estimated: number of requests whose tokens and money are estimates, in whole or in part.
        standard_priced: number of requests of service tiers without a known price, at the price of the standard tier.
        logged_cost: money that a log states for its requests; None if it states none.
        logged_difference: this money, less the money here, of the requests with both; None without such requests. 0 within
            the rounding of logs.
        reported_cost: money of the group in a provider's report of costs; None if it has none.
        reported_difference: this money, less `cost`, if both are known; 0 within the rounding of the report.
        as_model_cost: cost of the same tokens at today's prices of another model; None if no model was given.
        as_model_difference: this cost, less `cost`, of the requests with both.
        groups: the fields of the group with their values, such as a day and a model; empty for the sum of all.
    """

    name: str
    requests: int | None = 0
    input_tokens: int | None = None
    reused_tokens: int | None = None
    written_tokens: int | None = None
    output_tokens: int | None = None
    lost: dict[str, int] = field(default_factory=dict)
    lost_costs: dict[str, float] = field(default_factory=dict)
    cost: float | None = None
    input_cost: float | None = None
    output_cost: float | None = None
    proxy_requests: int = 0
    proxy_cost: float | None = None
    uncached_cost: float | None = None
    lost_cost: float | None = None
    unpriced: int = 0
    unreported: int = 0
    incomplete: int = 0
    estimated: int = 0
    standard_priced: int = 0
    logged_cost: float | None = None
    logged_difference: float | None = None
    reported_cost: float | None = None
    reported_difference: float | None = None
    as_model_cost: float | None = None
    as_model_difference: float | None = None
    groups: dict[str, str] = field(default_factory=dict)

    def add(self, request: PaidRequest, price: PriceSettings | None) -> None:
        count = request.least_count
        self.requests = None if self.requests is None or request.count is None else self.requests + count
        if request.logged_cost is not None:
            self._add_logged(request.logged_cost, None if price is None else request.cost_at(price))
        if request.prompt_tokens is None and request.completion_tokens is None:
            self.unreported += count
            return
        if count:
            self._add_tokens(request)
        else:
            self.proxy_requests += 1
        if price is None:
            self.unpriced += count
            return
        if request.prompt_tokens is not None:
            self.input_cost = (self.input_cost or 0.0) + request.input_cost(price)
            if count:
                self.uncached_cost = (self.uncached_cost or 0.0) + request.uncached_cost(price)
        if request.completion_tokens is not None:
            self.output_cost = (self.output_cost or 0.0) + request.output_cost(price)
        if count and (lost_costs := request.lost_costs(price)) is not None:
            self.lost_cost = (self.lost_cost or 0.0) + sum(lost_costs.values())
            for cause, lost_cost in lost_costs.items():
                self.lost_costs[cause] = self.lost_costs.get(cause, 0.0) + lost_cost
        if not count:
            paid = request.input_cost(price) + request.output_cost(price)
            self.proxy_cost = (self.proxy_cost or 0.0) + paid
        self.cost = (self.input_cost or 0.0) + (self.output_cost or 0.0)

    def _add_logged(self, logged: float, cost: float | None) -> None:
        self.logged_cost = (self.logged_cost or 0.0) + logged
        if cost is not None:
            self.logged_difference = (self.logged_difference or 0.0) + logged - cost

    def add_cost_as(self, other: float | None, cost: float | None) -> None:
        """Add the cost of a request with another model, and its own."""
        if other is not None:
            self.as_model_cost = (self.as_model_cost or 0.0) + other
        if other is not None and cost is not None:
            self.as_model_difference = (self.as_model_difference or 0.0) + other - cost

    def drop_rounding(self, rounding: float) -> None:
        """Set a difference of sums that are equal but for rounding to 0; `rounding` is that of the logged amounts."""
        difference, logged = self.logged_difference, self.logged_cost
        if difference is not None and logged is not None and abs(difference) <= (rounding + _ROUNDING * abs(logged)):
            self.logged_difference = 0.0

    def _add_tokens(self, request: PaidRequest) -> None:
        self.estimated += request.is_estimated
        self.input_tokens = _add(self.input_tokens, request.prompt_tokens)
        if request.prompt_tokens is None or request.completion_tokens is None:
            self.incomplete += request.least_count
        self.reused_tokens = _add(self.reused_tokens, request.reused_tokens)
        self.written_tokens = _add(self.written_tokens, _add(request.written_5m, request.written_1h))
        self.output_tokens = _add(self.output_tokens, request.completion_tokens)
        self.lost = dict(Counter(self.lost) + Counter(request.lost or {}))


def _add(total: int | None, count: int | None) -> int | None:
    """Return the sum of the known numbers; None if both are unknown."""
    return count if total is None else total + (count or 0)


def recorded_requests(
    reader: JournalReader,
    since: float | None = None,
    until: float | None = None,
    tenant: str | None = None,
    model: str | None = None,
    team: str | None = None,
    tag: str | None = None,
) -> Iterator[PaidRequest]:
    """Yield the journal's requests that reached a provider between two times in seconds since the epoch.

    `tenant` selects the requests of a tenant, or of the client with this name; `model` those for a model, `team` those of
    a team, and `tag` those with a tag.
    """
    first = 0 if since is None else reader.first_number_since(since)
    values: list[object] = [first, since or 0.0, math.inf if until is None else until]
    of_tenant, names = ("", []) if tenant is None else (f" and {OF_TENANT}", [tenant, tenant])
    of_model, models = ("", []) if model is None else (" and r.model = ?", [model])
    of_team, teams = ("", []) if team is None else (" and r.team = ?", [team])
    of_tag, tagged = ("", []) if tag is None else (f" and {OF_TAG}", [f",{tag},"])
    sql = _REQUESTS + of_tenant + of_model + of_team + of_tag
    for row in reader.rows(sql, [*values, *names, *models, *teams, *tagged]):
        (
            time,
            model,
            tenant,
            client,
            tags,
            team,
            reused,
            prompt,
            completion,
            estimated,
            tier,
            modalities,
            is_of_proxy,
            short,
            long,
            pause,
            *lost,
        ) = row
        if not is_counted(tags or "", tag):
            continue
        yield PaidRequest(
            time=time,
            model=model,
            project=project_of((tags or "").split(",")),
            client=client or tenant_name(tenant),
            tenant=tenant,
            prompt_tokens=prompt,
            completion_tokens=completion,
            reused_tokens=reused,
            written_5m=short,
            written_1h=long,
            pause=pause,
            is_estimated=estimated is not None,
            service_tier=tier,
            modalities=modalities,
            lost={cause: count for cause, count in zip(CAUSES, lost, strict=True) if count},
            tags=counted_tags((tags or "").split(",")),
            team=team or "",
            count=0 if is_of_proxy else 1,
        )


def with_costs(
    reader: JournalReader,
    query: RecordFilter,
    by: Group,
    groups: Sequence[RequestGroup],
    prices: Mapping[str, PriceSettings],
) -> list[RequestGroup]:
    """Return the groups of `JournalReader.groups` with the cost of their requests."""
    costs: defaultdict[str | int, float] = defaultdict(float)
    unpriced, unreported = Counter[str | int](), Counter[str | int]()
    priced = set[str | int]()
    for key, time, model, prompt, completion, reused, short, long, pause, tier, modalities in reader.paid_rows(
        query, by, [group.key for group in groups]
    ):
        paid = PaidRequest(time, model, "", "", prompt, completion, reused, short, long, pause)
        paid = replace(paid, service_tier=tier, modalities=modalities)
        cost = paid.cost(prices)
        if cost is None:
            (unreported if prompt is None and completion is None else unpriced)[key] += 1
        else:
            priced.add(key)
            costs[key] += cost
    known = priced | {group.key for group in groups if group.cached} - {*unpriced, *unreported}
    return [
        replace(
            group,
            cost=costs[group.key] if group.key in known else None,
            unpriced=unpriced[group.key],
            unreported=unreported[group.key],
        )
        for group in groups
    ]


def record_costs(
    records: Sequence[Record], turns: Mapping[int, "Turn"], prices: Mapping[str, PriceSettings]
) -> dict[int, float]:
    """Return costs by record number. Answers of caches and plugins cost 0. Records with an unknown price or usage are omitted."""
    costs: dict[int, float] = {}
    for record in records:
        if record.layer in (*CACHES, "plugin") or record.reason.startswith("hit-"):
            costs[record.number] = 0.0
        elif record.status == 200 or record.estimated_prompt_tokens is not None:
            turn = turns.get(record.number)
            paid = PaidRequest(
                time=record.time,
                model=record.model,
                project="",
                client="",
                prompt_tokens=_first(record.prompt_tokens, record.estimated_prompt_tokens),
                completion_tokens=_first(record.completion_tokens, record.estimated_completion_tokens),
                reused_tokens=record.reused_tokens,
                written_5m=None if turn is None else turn.written_5m,
                written_1h=None if turn is None else turn.written_1h,
                pause=None if turn is None else turn.pause,
                service_tier=record.service_tier,
                modalities=record.modalities,
            )
            if (cost := paid.cost(prices)) is not None:
                costs[record.number] = cost
    return costs


def _first(reported: int | None, estimated: int | None) -> int | None:
    return estimated if reported is None else reported
