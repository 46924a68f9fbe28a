"""Quotas of clients: requests and tokens per minute, and concurrent requests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvproxy.errors import RequestTooLarge, TooManyRequests
from kvproxy.settings.clients import ClientSettings
from kvproxy.token_bucket import TokenBucket


class Quota:
    """A client's limits and usage in this process. Other proxies count separately.

    Args:
        on_spent: called with the client's name and the tokens of each computed response.
        charge_cached: whether cached responses cost tokens, too.
    """

    def __init__(self, client: ClientSettings, on_spent: Callable[[str, int], None], *, charge_cached: bool) -> None:
        self.client = client
        self.charges_cached = charge_cached
        self._spent = on_spent
        self._requests = _bucket(client.requests_per_minute)
        self._tokens = _bucket(client.tokens_per_minute)
        self._in_flight = 0

    def update(self, client: ClientSettings) -> None:
        """Change the limits, and keep the usage."""
        before, self.client = self.client, client
        if before.requests_per_minute != client.requests_per_minute:
            self._requests = _bucket(client.requests_per_minute)
        if before.tokens_per_minute != client.tokens_per_minute:
            self._tokens = _bucket(client.tokens_per_minute)

    @contextmanager
    def request(self) -> Iterator["Account"]:
        """Count a request until the `with` block ends. Raises TooManyRequests."""
        most = self.client.concurrent_requests
        if most is not None and self._in_flight >= most:
            raise _too_many("concurrent_requests", f"the limit of requests in flight ({most}) is reached", 1.0)
        if self._requests is not None:
            if (wait := self._requests.wait(1)) > 0:
                why = f"the limit of requests per minute ({self._requests.per_minute}) is reached"
                raise _too_many("requests_per_minute", why, wait)
            self._requests.take(1)
        self._in_flight += 1
        try:
            yield Account(self)
        finally:
            self._in_flight -= 1

    def take(self, tokens: int) -> None:
        """Charge a client for tokens before they are computed.

        Raises:
            TooManyRequests: this minute's quota is used up.
            RequestTooLarge: the tokens exceed a whole minute's quota.
        """
        bucket = self._tokens
        if bucket is None:
            return
        if tokens > bucket.per_minute:
            raise RequestTooLarge(
                f"the request has some {tokens:,} tokens, and {bucket.per_minute:,} a minute are allowed",
                limit="tokens_per_minute",
            )
        if (wait := bucket.wait(tokens)) > 0:
            raise _too_many("tokens_per_minute", f"more than {bucket.per_minute:,} tokens a minute", wait)
        bucket.take(tokens)

    def correct(self, taken: int, used: int) -> None:
        """Replace an estimate with the actual usage."""
        self._spent(self.client.name, used)
        if self._tokens is not None:
            self._tokens.take(used - taken)

    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for bucket, unit in ((self._requests, "requests"), (self._tokens, "tokens")):
            if bucket is not None:
                headers |= bucket.headers(unit)
        return headers


class Account:
    """Charges a client for one request."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._taken: int | None = None

    def reserve(self, tokens: int) -> None:
        """Charge the estimated cost of work before it begins. Raises as `Quota.take`."""
        self._quota.take(tokens)
        self._taken = (self._taken or 0) + tokens

    def settle(self, tokens: int) -> None:
        """Replace all reservations with the final cost."""
        if self._taken is not None:
            self._quota.correct(self._taken, tokens)
        self._taken = None

    def charge_cached_response(self, tokens: int) -> None:
        """Charge for a cached response, if it costs tokens. Raises as `Quota.take`."""
        if self._quota.charges_cached:
            self._quota.take(tokens)


class Quotas:
    """The quotas of all clients."""

    def __init__(self, on_spent: Callable[[str, int], None], *, charge_cached: bool) -> None:
        self._spent = on_spent
        self._cached = charge_cached
        self._quotas: dict[str, Quota] = {}

    def get(self, client: ClientSettings) -> Quota:
        """Return a client's quota, with its latest limits."""
        quota = self._quotas.get(client.name)
        if quota is None:
            quota = self._quotas[client.name] = Quota(client, self._spent, charge_cached=self._cached)
        elif quota.client is not client:
            quota.update(client)
        return quota


def _bucket(per_minute: int | None) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute)


def _too_many(limit: str, why: str, seconds: float) -> TooManyRequests:
    return TooManyRequests(
        f"{why}: try again in {max(1, round(seconds))} s", limit=limit, retry_after=max(1.0, seconds)
    )
