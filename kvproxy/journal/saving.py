"""The time and money that the caches saved for one group of requests."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from kvproxy.journal.prefill_time import PrefillCost
from kvproxy.journal.priced_requests import PricedRequest

_ROUNDING = 1e-12  # Far below the price of a token.


@dataclass(slots=True)
class Saving:
    """Savings of a group of requests.

    Attributes:
        answered: number of requests with a cached response.
        prompt_tokens, completion_tokens: tokens of the prompts of these requests, and of the cached responses; None if the tokens
            of no hit are known.
        reused_tokens: prompt tokens that the backend reused.
        seconds: durations of original responses minus durations of hits, which may be longer, plus the prefill time of reused
            tokens; None if no part is known.
        hit_seconds: part of `seconds` from hits; the prefix cache of the backend saved the rest. None if unknown.
        least_seconds, most_seconds: bounds of `seconds`.
        unmeasured_tokens: reused tokens whose prefill time is unknown; `seconds` does not include it.
        spent: price of the requests that reached the provider; None if no model has a price.
        unpriced_requests, unreported_requests: requests that a model without a price answered, and answered ones without
            reported or estimated tokens; `spent` excludes them.
        estimated_requests: such requests without reported tokens, which `spent` counts by estimated tokens.
        standard_priced_requests: requests of service tiers at the price of the standard tier, because that of theirs is
            unknown, or their records were deleted.
        money: saved money, at least `least_money`; None if no model has a price.
        hit_money: part of `money` from hits; the rest is from the prefix cache of the backend, less the cost of filling it.
        priced_tokens: prompt tokens of hits on models with a price of cached tokens.
        cached_tokens: part of `priced_tokens` that the provider's cache would have reused; counted at the price of reuse.
        uncertain_tokens: prompt tokens of hits for which `cached_tokens` is uncertain; `money` assumes the lowest number.
        partial_hits: requests of which a cache had some inputs of an array. Tokens and `money` include these inputs.
        unreported_hits: hits, and partial hits, whose tokens are unknown; tokens and `money` exclude them.
        unpriced_hits, unpriced_reused_tokens: hits and reused tokens of models without a price; `money` excludes them.
        wrong_hits: semantic hits whose response a person rejected; tokens, seconds and money exclude them.
    """

    name: str
    requests: int = 0
    answered: int = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    reused_tokens: int = 0
    seconds: float | None = 0.0
    hit_seconds: float | None = 0.0
    least_seconds: float | None = 0.0
    most_seconds: float | None = 0.0
    unmeasured_tokens: int = 0
    spent: float | None = None
    unpriced_requests: int = 0
    unreported_requests: int = 0
    estimated_requests: int = 0
    standard_priced_requests: int = 0
    money: float | None = None
    hit_money: float | None = None
    least_money: float | None = None
    priced_tokens: int = 0
    cached_tokens: int = 0
    uncertain_tokens: int = 0
    partial_hits: int = 0
    unreported_hits: int = 0
    unpriced_hits: int = 0
    unpriced_reused_tokens: int = 0
    wrong_hits: int = 0

    @property
    def hits(self) -> int:
        """Number of requests whose tokens are counted: a cache answered them, or some of their inputs."""
        return self.answered + self.partial_hits

    def add_tokens(self, prompt: int, completion: int) -> None:
        self.prompt_tokens = (self.prompt_tokens or 0) + prompt
        self.completion_tokens = (self.completion_tokens or 0) + completion

    def add_seconds(self, by_hits: float, reused_tokens: int, cost: PrefillCost) -> None:
        self.hit_seconds = (self.hit_seconds or 0.0) + by_hits
        self.seconds = (self.seconds or 0.0) + by_hits + reused_tokens * cost.seconds
        self.least_seconds = (self.least_seconds or 0.0) + by_hits + reused_tokens * cost.least
        self.most_seconds = (self.most_seconds or 0.0) + by_hits + reused_tokens * cost.most

    def remove_unknown(self) -> None:
        """Replace sums of which no part is known by None."""
        hits = self.hits
        if hits and self.unreported_hits == hits:
            self.prompt_tokens = self.completion_tokens = None
        # Imported responses and the inputs of an array have no duration, so their hits save an unknown time.
        has_untimed_hits = hits > self.wrong_hits and not self.hit_seconds
        if has_untimed_hits:
            self.hit_seconds = None
        if not self.seconds and (self.unmeasured_tokens or has_untimed_hits):
            self.seconds = self.least_seconds = self.most_seconds = None

    def add_money(self, money: float, least_money: float, *, is_hit: bool = False) -> None:
        self.money = (self.money or 0.0) + money
        self.hit_money = (self.hit_money or 0.0) + (money if is_hit else 0.0)
        self.least_money = (self.least_money or 0.0) + least_money

    def add_cost(self, money: float) -> None:
        """Add what filling the provider's cache cost: it was spent, and saved nothing."""
        self.add_money(-money, -money)
        self.add_spent(money)

    def add_spent(self, money: float) -> None:
        self.spent = (self.spent or 0.0) + money

    def add_unpriced(self, request: PricedRequest, *, is_hit: bool) -> None:
        """Count a request without a price, whose money was subtracted."""
        self.unpriced_hits += is_hit
        self.unpriced_requests += not is_hit
        self.unpriced_reused_tokens += 0 if is_hit else request.reused_tokens

    def drop_rounding(self) -> None:
        """Set money to None if all requests with it turned out to have no price."""
        names = ["spent", *(("money", "hit_money", "least_money") if self.unpriced_hits else ())]
        for name in names:
            if abs(getattr(self, name) or 0.0) < _ROUNDING:
                setattr(self, name, None)


def sum_savings(rows: Sequence[Saving]) -> Saving:
    """Return the total of groups whose requests differ."""
    total = Saving("all")
    for row in rows:
        for name in (field.name for field in fields(Saving)[1:]):
            values = [value for saving in (total, row) if (value := getattr(saving, name)) is not None]
            setattr(total, name, sum(values) if values else None)
    return total
