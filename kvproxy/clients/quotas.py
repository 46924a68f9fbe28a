"""Limits each client's requests and tokens per minute, its concurrent requests, and the money that it spends."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial

from kvproxy.clients.shared_state import MAX_DEBT_MINUTES, SharedState
from kvproxy.clients.spent_money import Reservation, SpentMoney
from kvproxy.errors import RequestExceedsQuota, TooManyRequests
from kvproxy.index.errors import CacheStoreError
from kvproxy.settings.access import ClientSettings
from kvproxy.settings.journal import PriceSettings

OnPaid = Callable[[str, str, float], None]


class TokenBucket:
    """A rate limit in units (requests or tokens) per minute. The bucket starts full.

    It may be overdrawn by the units of `MAX_DEBT_MINUTES`; more units are forgiven.
    The bucket refills at the rate limit times `share`, the fraction that this proxy grants.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self.share = 1.0
        self._clock = clock
        self._units = float(per_minute)
        self._updated = clock()

    @property
    def available_units(self) -> float:
        now = self._clock()
        self._units = min(self.per_minute, self._units + (now - self._updated) * self.share * self.per_minute / 60)
        self._updated = now
        return self._units

    @available_units.setter
    def available_units(self, units: float) -> None:
        least = -MAX_DEBT_MINUTES * self.per_minute
        self._units, self._updated = min(self.per_minute, max(least, units)), self._clock()

    def take(self, units: float) -> None:
        """Take units, even if they are not available; negative units are returned to the bucket."""
        self.available_units -= units

    def seconds_until_available(self, units: float) -> float:
        return max(0.0, units - self.available_units) * 60 / (self.share * self.per_minute)

    def headers(self, unit: str) -> dict[str, str]:
        return {
            f"x-ratelimit-limit-{unit}": str(self.per_minute),
            f"x-ratelimit-remaining-{unit}": str(max(0, int(self.available_units))),
            f"x-ratelimit-reset-{unit}": format_limit_reset(self.seconds_until_available(self.per_minute)),
        }


def format_limit_reset(seconds: float) -> str:
    """Format seconds as OpenAI's header `x-ratelimit-reset-*`, rounded up: `350ms`, `12s`, `1m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


class _ClientBucket:
    """A client's token bucket, shared between proxies in PostgreSQL if they have a `SharedState`.

    While PostgreSQL is unavailable, each proxy grants an equal part of the quota, and charges the shared bucket later.
    """

    def __init__(self, client: str, unit: str, per_minute: int, shared: SharedState | None) -> None:
        self.local = TokenBucket(per_minute)
        self._name = client, unit
        self._shared = shared
        self._owed = 0.0
        self._paying = asyncio.Lock()
        self._charges: set[asyncio.Task[float]] = set()

    async def take(self, units: float, *, into_debt: bool = False) -> float:
        """Take units. Return the seconds until they are available, 0.0 if they were taken."""
        local, shared = self.local, self._shared
        if shared is not None:
            try:
                await self.charge_debt()
                seconds = units * 60 / local.per_minute
                taken, busy = await shared.take_units(*self._name, seconds, into_debt=into_debt)
                local.share, local.available_units = 1.0, local.per_minute * (1 - busy / 60)
                return 0.0 if taken else local.seconds_until_available(units)
            except CacheStoreError:
                if local.share == 1:
                    local.available_units, local.share = local.available_units / shared.proxies, 1 / shared.proxies
        if not into_debt and (wait := local.seconds_until_available(units)) > 0:
            return wait
        local.take(units)
        self._owed += units
        return 0.0

    async def charge_debt(self) -> None:
        """Charge the shared bucket for requests that were granted without it. Raises a CacheStoreError."""
        async with self._paying:
            if self._shared is not None and self._owed:
                await self._charge_debt(self._shared)

    async def _charge_debt(self, shared: SharedState) -> None:
        owed, self._owed = self._owed, 0.0
        try:
            await shared.take_units(*self._name, owed * 60 / self.local.per_minute, into_debt=True)
        except CacheStoreError:
            self._owed += owed
            raise

    def charge(self, units: float) -> None:
        if self._shared is None:
            self.local.take(units)
            return
        task = asyncio.create_task(self.take(units, into_debt=True))
        self._charges.add(task)
        task.add_done_callback(self._charges.discard)


class Quota:
    """A client's quota and usage: requests and tokens per minute, and concurrent requests.

    Args:
        on_spent: called with the client's name and the tokens of each response that a backend computes.
        on_paid: called with the client's name, the model, and the price of each such response.
        shared: shares the usage with other proxies; None for a single proxy.
        spent: counts the money that clients with a budget spend; None enforces no budget.
    """

    def __init__(
        self,
        client: ClientSettings,
        on_spent: Callable[[str, int], None],
        shared: SharedState | None = None,
        spent: SpentMoney | None = None,
        on_paid: OnPaid | None = None,
    ) -> None:
        self.client = client
        self.on_spent = on_spent
        self.on_paid = on_paid
        self.spent = spent
        self.team: Quota | None = None
        self._shared = shared
        self._requests = self._make_bucket("requests", client.requests_per_minute)
        self.tokens = self._make_bucket("tokens", client.tokens_per_minute)
        self._in_flight = 0

    def _make_bucket(self, unit: str, per_minute: int | None) -> _ClientBucket | None:
        return None if per_minute is None else _ClientBucket(self.client.name, unit, per_minute, self._shared)

    def update(self, client: ClientSettings) -> None:
        before, self.client = self.client, client
        is_reset = before.counts_since != client.counts_since
        if is_reset or before.requests_per_minute != client.requests_per_minute:
            self._requests = self._make_bucket("requests", client.requests_per_minute)
        if is_reset or before.tokens_per_minute != client.tokens_per_minute:
            self.tokens = self._make_bucket("tokens", client.tokens_per_minute)

    async def charge_debts(self) -> None:
        for bucket in (self._requests, self.tokens):
            if bucket is not None:
                await bucket.charge_debt()

    @asynccontextmanager
    async def admit(self) -> AsyncIterator["Account"]:
        """Count a request, which is in flight during the `with` block, also for the team. Raises TooManyRequests."""
        async with self._admit(), nullcontext() if self.team is None else self.team._admit(self.team.client.name):
            yield Account(self)

    @asynccontextmanager
    async def _admit(self, team: str | None = None) -> AsyncIterator[None]:
        most, of_team = self.client.concurrent_requests, _of_team(team)
        if most is not None and self._in_flight >= most:
            why = f"the limit of requests in flight ({most}){of_team} is reached"
            raise _too_many_requests("concurrent_requests", why, 1.0, team)
        self._in_flight += 1
        try:
            if self._requests is not None and (wait := await self._requests.take(1)) > 0:
                why = f"the limit of requests per minute ({self.client.requests_per_minute}){of_team} is reached"
                raise _too_many_requests("requests_per_minute", why, wait, team)
            yield
        finally:
            self._in_flight -= 1

    def headers(self) -> dict[str, str]:
        """Return the headers of the limits; of the client's and the team's, the one with less left."""
        quotas = [self] if self.team is None else [self, self.team]
        headers: dict[str, str] = {}
        for unit in ("requests", "tokens"):
            found = [quota._requests if unit == "requests" else quota.tokens for quota in quotas]
            buckets = [bucket.local for bucket in found if bucket is not None]
            if buckets:
                headers |= min(buckets, key=lambda bucket: bucket.available_units).headers(unit)
        return headers


class Account:
    """Charges a request to its client's quota: `reserve` charges an estimate, which `settle` replaces by the usage.

    Without `counts_tokens`, only the budget counts. `team`: name of the quota's client, if it is charged as a team; the metrics
    count the request for its client only.
    """

    def __init__(self, quota: Quota, *, counts_tokens: bool = True, team: str | None = None) -> None:
        self._quota = quota
        self._team_name = team
        self._team: Account | None = None
        # A team has no team, also if the quota of its client has one from before a change.
        if quota.team is not None and team is None:
            self._team = Account(quota.team, counts_tokens=counts_tokens, team=quota.team.client.name)
        self._counts_tokens = counts_tokens
        self._reserved: int | None = None
        self._reserved_money: Reservation | None = None

    @property
    def client(self) -> ClientSettings:
        return self._quota.client

    @property
    def has_budget(self) -> bool:
        return bool(self.budget_owners)

    @property
    def budget_owners(self) -> list[ClientSettings]:
        """The client and its team, if their budgets count the request."""
        own = [self.client] if self.client.has_budget else []
        return own if self._team is None else [*own, *self._team.budget_owners]

    @property
    def budget_clause(self) -> str:
        """A clause that names the owners of the budgets that count the request."""
        named = [f"the {'client' if owner is self.client else 'team'} {owner.name}" for owner in self.budget_owners]
        return f"{' and '.join(named)} {'has a budget' if len(named) == 1 else 'have budgets'}"

    @property
    def budget_removal(self) -> str:
        """The commands that remove the budgets that count the request."""
        return " and ".join(
            f"kvproxy keys set {owner.name} --unlimited budget-per-day,budget-per-month" for owner in self.budget_owners
        )

    @property
    def prices(self) -> Mapping[str, PriceSettings] | None:
        """Prices by model, which decide the money to charge; None if no money is counted."""
        return None if self._quota.spent is None else self._quota.spent.prices

    def for_money(self) -> "Account":
        """Return an account for a request of the proxy on behalf of the client, which counts for its budget only."""
        return Account(self._quota, counts_tokens=False)

    async def reserve(self, tokens: int, money: float = 0.0) -> None:
        """Charge estimated tokens of a prompt, and reserve the most that the request may cost, before they are computed.

        A further call adds tokens only. Raises BudgetExceeded or TooManyRequests if a budget or the quota is used up, or
        RequestExceedsQuota if one minute's quota is less than the tokens.
        """
        if self._quota.spent is not None and self.client.has_budget and self._reserved_money is None:
            is_team = self._team_name is not None
            self._reserved_money = await self._quota.spent.reserve(self._quota.client, money, is_team=is_team)
        try:
            await self._reserve_tokens(tokens)
            if self._team is not None:
                await self._reserve_of_team(self._team, tokens, money)
        except BaseException:
            self._settle_money(0.0)
            raise

    async def _reserve_of_team(self, team: "Account", tokens: int, money: float) -> None:
        try:
            await team.reserve(tokens, money)
        except BaseException:
            if self._reserved is not None:
                self._reserved -= tokens
                if self._quota.tokens is not None:
                    self._quota.tokens.charge(-tokens)
            raise

    async def _reserve_tokens(self, tokens: int) -> None:
        if not self._counts_tokens:
            return
        bucket, per_minute, of_team = self._quota.tokens, self.client.tokens_per_minute, _of_team(self._team_name)
        if bucket is not None and per_minute is not None:
            if tokens > per_minute:
                raise RequestExceedsQuota(
                    f"the request has some {tokens:,} tokens, and {per_minute:,} a minute{of_team} are allowed",
                    limit="tokens_per_minute",
                    team=self._team_name,
                )
            if (wait := await bucket.take(tokens)) > 0:
                why = f"more than {per_minute:,} tokens a minute{of_team}"
                raise _too_many_requests("tokens_per_minute", why, wait, self._team_name)
        self._reserved = (self._reserved or 0) + tokens

    def settle(self, tokens: int, money: float = 0.0, model: str = "") -> None:
        """Replace the reserved tokens and money by the used ones, at least 0. `model` is the paid one."""
        if self._team is not None:
            self._team.settle(tokens, money, model)
        self._settle_money(money)
        if self._quota.on_paid is not None and money > 0 and self._team_name is None:
            self._quota.on_paid(self._quota.client.name, model, money)
        tokens = max(0, tokens)
        if self._reserved is not None:
            if self._team_name is None:
                self._quota.on_spent(self._quota.client.name, tokens)
            if self._quota.tokens is not None:
                self._quota.tokens.charge(tokens - self._reserved)
        self._reserved = None

    def _settle_money(self, money: float) -> None:
        if self._reserved_money is not None and self._quota.spent is not None:
            self._quota.spent.charge(self._quota.client.name, max(0.0, money), self._reserved_money)
        self._reserved_money = None


class Quotas:
    """The quotas of all clients; see `Quota` for the arguments."""

    def __init__(
        self,
        on_spent: Callable[[str, int], None],
        shared: SharedState | None = None,
        spent: SpentMoney | None = None,
        on_paid: OnPaid | None = None,
    ) -> None:
        self._make = partial(Quota, on_spent=on_spent, shared=shared, spent=spent, on_paid=on_paid)
        self._quotas: dict[str, Quota] = {}

    def get(self, client: ClientSettings, team: ClientSettings | None = None) -> Quota:
        """Return the quota of a client, which charges its team, too."""
        quota = self._get(client)
        quota.team = None if team is None else self._get(team)
        return quota

    async def charge_debts(self) -> None:
        """Charge the shared buckets for requests that were granted without them. Raises a CacheStoreError."""
        for quota in list(self._quotas.values()):
            await quota.charge_debts()

    def _get(self, client: ClientSettings) -> Quota:
        quota = self._quotas.get(client.name)
        if quota is None:
            quota = self._quotas[client.name] = self._make(client)
        elif quota.client is not client:
            quota.update(client)
        return quota


def _of_team(name: str | None) -> str:
    return "" if name is None else f" of the team {name}"


def _too_many_requests(limit: str, why: str, seconds: float, team: str | None) -> TooManyRequests:
    message = f"{why}: try again in {max(1, math.ceil(seconds))} s"
    return TooManyRequests(message, limit=limit, team=team, retry_after=max(1.0, seconds))
