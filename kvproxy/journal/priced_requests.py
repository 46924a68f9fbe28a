"""Reads recorded requests whose price depends on their hour, their service tier, or the length of their prompt."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvproxy.journal.reader import PAID_COMPLETION, PAID_PROMPT, JournalReader
from kvproxy.journal.saving_groups import is_counted
from kvproxy.journal.sums_filter import SumsFilter
from kvproxy.providers.prices import ModelPrices, has_tier_price, price_at, price_on
from kvproxy.providers.published_prices import least_priced_otherwise
from kvproxy.settings.journal import PriceSettings
from kvproxy.units import utc_day

_MODELS = "select model, sum(tiered) from totals where tag = '' group by 1 order by 1"
_LONGEST = 2**62
_REQUESTS = (
    f"select r.time, r.layer, r.model, r.tenant, coalesce(r.tags, ''), coalesce({PAID_PROMPT}, 0),"
    f" coalesce({PAID_COMPLETION}, 0),"
    " coalesce(case when r.status = 200 then r.reused_tokens end, 0), coalesce(t.written_5m, 0), coalesce(t.written_1h, 0),"
    " r.entry, r.service_tier, r.team, r.modalities"
    " from requests r left join turns t on t.number = r.number where r.model = ?"
    f" and ({PAID_PROMPT} >= ? or r.service_tier is not null or r.modalities is not null) and "
)


@dataclass(frozen=True, slots=True)
class PricedRequest:
    """A request whose price may differ from that of other requests on the same day; see `least_priced_otherwise`."""

    time: float
    layer: str
    model: str
    tenant: str
    tags: str
    prompt_tokens: int
    completion_tokens: int
    reused_tokens: int
    written_5m: int
    written_1h: int
    entry: str | None
    service_tier: str | None
    team: str | None
    modalities: str | None

    @property
    def day(self) -> str:
        """The UTC day, such as 2026-11-21."""
        return utc_day(self.time)

    def has_own_price(self, prices: ModelPrices) -> bool:
        """Whether the price of its service tier, or else of its audio and image tokens, is known or known to be missing."""
        if self.service_tier is None:
            return self.modalities is not None
        return has_tier_price(self.model, prices, self.time, self.service_tier)


def requests_with_other_prices(
    reader: JournalReader, prices: ModelPrices, selection: SumsFilter
) -> Iterator[tuple[PricedRequest, PriceSettings, PriceSettings | None]]:
    """Yield recorded requests with the day's usual price and their own one, if the two may differ.

    A request of a service tier is yielded if the price of its tier is known. The price of audio may be unknown: None.
    """
    condition, values = selection.records_sql()
    for model, tiered in reader.rows(_MODELS, []):
        least = None if prices.is_configured(model) else least_priced_otherwise(model, prices.price_list)
        if least is None and not tiered:
            continue
        for row in reader.rows(_REQUESTS + condition, [model, _LONGEST if least is None else least, *values]):
            request = PricedRequest(*row)
            tier = request.service_tier
            usual = price_on(model, prices, request.day)
            own = price_at(model, prices, request.time, request.prompt_tokens, tier, request.modalities)
            if usual is None or request.layer == "refused" or not is_counted(request.tags, selection.tag):
                continue
            if usual != own or request.has_own_price(prices):
                yield request, usual, own
