"""Charges a request to its client's quota and budget: an estimate before the response, and the reported usage after it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from json import JSONDecoder

from kvproxy.apis.api_request import BYTES_PER_TOKEN, in_thread_if_large
from kvproxy.apis.json import JsonObject, as_object, loads
from kvproxy.apis.modalities import reported_modalities
from kvproxy.apis.reported_usage import (
    PrefixReuse,
    UsageLimits,
    UsageLog,
    possible_tokens,
    tokens_used,
)
from kvproxy.apis.service_tiers import requested_tier, served_tier
from kvproxy.backends.protocol import Body, RelayedResponse
from kvproxy.clients.quotas import Account
from kvproxy.errors import DeadlineExceeded, Forbidden, KvproxyError, UpstreamTimeout
from kvproxy.exchange import Exchange, ResponseFacts
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.journal.spending import PaidRequest
from kvproxy.journal.token_estimates import estimate_prompt_tokens, most_output_tokens
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings.journal import PriceSettings

_READ_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class RequestPrice:
    """Prices a request of a client. `arrived` is in seconds since the epoch."""

    prices: Mapping[str, PriceSettings]
    model: str
    arrived: float
    requested_tier: str | None = None
    has_budget: bool = False

    def cost(
        self,
        prompt: int,
        completion: int,
        prefix: PrefixReuse | None = None,
        model: str | None = None,
        service_tier: str | None = None,
        modalities: str | None = None,
    ) -> float | None:
        """Return the price of numbers of tokens; None if it is unknown. `model` and its tier answered.

        A budget counts at least the price of text for `modalities` without a known price.
        """
        reused, short, long = (
            (0, 0, 0) if prefix is None else (prefix.cached_tokens, prefix.written_5m, prefix.written_1h)
        )
        paid = PaidRequest(
            time=self.arrived,
            model=model or self.model,
            project="",
            client="",
            prompt_tokens=prompt,
            completion_tokens=completion,
            reused_tokens=reused,
            written_5m=short,
            written_1h=long,
            service_tier=service_tier,
            modalities=modalities,
        )
        cost = paid.cost(self.prices)
        if cost is None and modalities is not None and self.has_budget:
            cost = replace(paid, modalities=None).cost(self.prices)
        # A fallback without a price costs as much as the requested model, whose price is known.
        if cost is None and model not in (None, self.model):
            return self.cost(prompt, completion, prefix, None, service_tier, modalities)
        return cost

    @property
    def is_known(self) -> bool:
        """Whether the requested model has a price."""
        return self.cost(0, 0) is not None

    def reservation(self, prompt: int, completion: int) -> float | None:
        """Return the highest price of these tokens.

        The provider's cache may store the prompt for short or long, and the standard tier may serve the request.
        """
        writes = None, PrefixReuse(prompt, 0, prompt, 0), PrefixReuse(prompt, 0, 0, prompt)
        costs = (
            self.cost(prompt, completion, prefix, None, tier)
            for prefix in writes
            for tier in {None, self.requested_tier}
        )
        return max((cost for cost in costs if cost is not None), default=None)


async def reserve(
    account: Account, tokens: int, output: int, model: str, arrived: float, service_tier: str | None = None
) -> RequestPrice | None:
    """Charge the estimated tokens of a prompt, and reserve their price and that of the most tokens of the response.

    Return the price of the request, which a fallback may have without the model; None if no money is counted.

    Raises Forbidden if the client has a budget, and the model no price, and the errors of `Account.reserve`.
    """
    if account.prices is None:
        await account.reserve(tokens)
        return None
    price = RequestPrice(account.prices, model, arrived, service_tier, account.has_budget)
    compute = price.reservation if account.has_budget else price.cost
    prices = account.prices
    if isinstance(prices, ModelPrices) and (service_tier is not None or not prices.is_found_at_once(model, arrived)):
        cost = await asyncio.to_thread(compute, tokens, output)
    else:
        cost = compute(tokens, output)
    if cost is None and account.has_budget:
        raise Forbidden(
            f"{account.budget_clause}, and the model {model[:100]!r} has no price: ask the operator to set"
            f' [journal.prices."{model[:100]}"], or to remove the budget ({account.budget_removal})',
            param="model",
            limit="prices",
        )
    await account.reserve(tokens, cost or 0.0)
    return price


async def send_charged(
    exchange: Exchange, account: Account, send: Callable[[], Awaitable[BackendResponse]]
) -> BackendResponse:
    """Send a request, and charge its tokens to the account.

    A request that fails costs nothing. One that is cancelled, or too slow, after it was sent, before its response, costs its
    estimated prompt.
    """
    request, arrived = exchange.api_request, exchange.arrived
    estimated = await in_thread_if_large(len(request.raw), lambda: estimate_prompt_tokens(request.body))
    output = most_output_tokens(request.api.path, request.body)
    price = await reserve(account, estimated, output, request.model, arrived, requested_tier(request.body))
    try:
        response = await send()
    except (asyncio.CancelledError, UpstreamTimeout):
        if exchange.was_sent:
            fallback = request.delivery.fallback or None
            money = None if price is None else price.cost(estimated, 0, None, fallback, price.requested_tier)
            account.settle(estimated, money or 0.0, fallback or request.model)
        else:
            account.settle(0)
        raise
    except BaseException:
        account.settle(0)
        raise
    close = response.close

    async def settle_and_close() -> None:
        # The closure refers to the response: the cycle would keep it in memory.
        response.close = close
        money = 0.0 if price is None else _money_to_charge(response, price, estimated)
        served_by = response.facts.served_by
        model = request.model if served_by is None else served_by.fallback or request.model
        account.settle(_tokens_to_charge(response, estimated), money, model)
        await close()

    response.close = settle_and_close
    return response


def _observe_chunks(response: RelayedResponse, on_chunk: Callable[[bytes], None], on_close: Callable[[], None]) -> None:
    chunks, close = response.chunks, response.close

    async def observed_chunks() -> AsyncIterator[bytes]:
        async for chunk in chunks:
            on_chunk(chunk)
            yield chunk

    async def observed_close() -> None:
        # `on_close` may refer to the response: the cycle would keep it in memory.
        response.close = close
        on_close()
        await close()

    response.chunks, response.close = observed_chunks(), observed_close


def _tokens_to_charge(response: BackendResponse, estimated: int) -> int:
    if response.status >= 400:
        return 0
    usage, prefix = response.facts.usage, response.facts.prefix
    if any(usage):
        return sum(count or 0 for count in usage)
    return (estimated if prefix is None else prefix.prompt_tokens) + response.facts.received_tokens


def _money_to_charge(response: BackendResponse, price: RequestPrice, estimated: int) -> float:
    if response.status >= 400:
        return 0.0
    facts = response.facts
    prompt = estimated if facts.prompt_tokens is None else facts.prompt_tokens
    completion = facts.received_tokens if facts.completion_tokens is None else facts.completion_tokens
    fallback = None if facts.served_by is None else facts.served_by.fallback
    model, tier = fallback or None, facts.service_tier
    return price.cost(prompt, completion, facts.prefix, model, tier, facts.modalities) or 0.0


class UnparsedRequestCharge:
    """Charges a quota for a request that the proxy forwards without parsing it.

    The charge is the `usage` in a JSON response, or else one token per four bytes of request and response.

    Args:
        exchange: its account is charged, and it receives the usage if the request costs money.
        model: the model to pay for; None if it is unknown, or if the request costs no money.
        content_length: 0 if it is unknown.
        output: the most tokens of the response.
    """

    def __init__(
        self,
        exchange: Exchange,
        account: Account,
        content_length: int,
        log: UsageLog,
        model: str | None = None,
        output: int = 0,
    ) -> None:
        self._exchange = exchange
        self._account = account
        self._log = log
        self._model = model
        self._output = output
        self._price: RequestPrice | None = None
        self._reserved = max(1, content_length // BYTES_PER_TOKEN)
        self._uploaded = 0
        self._refused: KvproxyError | None = None
        self._body = bytearray()
        self._size = 0

    async def reserve(self) -> None:
        if self._model is None:
            await self._account.reserve(self._reserved)
        else:
            price = await reserve(self._account, self._reserved, self._output, self._model, self._exchange.arrived)
            # No fallback answers such a request.
            self._price = price if price is not None and price.is_known else None
        self._exchange.unread_model = ""

    def charge_upload(self, body: Body) -> Body:
        return body if isinstance(body, bytes) else self._charge_chunks(body)

    async def _charge_chunks(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in body:
            self._uploaded += len(part)
            more = self._uploaded // BYTES_PER_TOKEN - self._reserved
            if more > 0:
                try:
                    await self._account.reserve(more)
                except KvproxyError as error:
                    self._refused = error
                    raise
                self._reserved += more
            yield part

    def refund(self, error: BaseException) -> None:
        """Refund a failed request, except one that was aborted after it was sent: it costs its estimated prompt.

        If the quota stopped its upload, raise the quota's error from `error`.
        """
        is_aborted = isinstance(error, DeadlineExceeded | UpstreamTimeout) or not isinstance(error, KvproxyError)
        if is_aborted and self._exchange.was_sent and self._refused is None:
            self._account.settle(*self._aborted_usage(), self._model or "")
        else:
            self._account.settle(0)
        if self._refused is not None:
            # The quota's error is also the cause of `error`, and its traceback refers to this charge.
            error.__context__ = None
            try:
                raise self._refused from error
            finally:
                self._refused = None

    def _aborted_usage(self) -> tuple[int, float]:
        if self._model is None:
            return self._reserved, 0.0
        self._exchange.unread_model = self._model
        self._exchange.facts = ResponseFacts(estimated_usage=(self._reserved, 0))
        return self._reserved, 0.0 if self._price is None else self._price.cost(self._reserved, 0) or 0.0

    def charge_response(self, reply: RelayedResponse) -> RelayedResponse:
        is_json = any(name == "content-type" and "json" in value for name, value in reply.headers)

        def count(chunk: bytes) -> None:
            self._size += len(chunk)
            if is_json:
                self._body += chunk
                # The usage follows the images of a large response.
                del self._body[:-_READ_BYTES]

        def settle() -> None:
            if reply.status >= 400:
                self._exchange.unread_model = self._model or ""
                self._account.settle(0)
            else:
                self._account.settle(*self._usage(), self._model or "")

        _observe_chunks(reply, count, settle)
        return reply

    def _usage(self) -> tuple[int, float]:
        """Return the used tokens, and their price."""
        prompt, completion, prefix = self._reserved, self._size // BYTES_PER_TOKEN, None
        tokens, is_reported, tier, modalities = prompt + completion, False, None, None
        if self._body:
            response = self._read_response()
            sent = max(self._uploaded, BYTES_PER_TOKEN * self._reserved)
            limits = UsageLimits(possible_tokens(sent), possible_tokens(self._size))
            tier = served_tier(response)
            is_possible, reuse = self._log.check(response, "the upstream", limits)
            if is_possible and (used := tokens_used(response)) is not None:
                tokens, (prompt, completion), prefix, is_reported = sum(used), used, reuse, True
                prompt = prompt if prefix is None else prefix.prompt_tokens
                modalities = reported_modalities(response)
        if self._model is None:
            return tokens, 0.0
        usage = prompt, completion
        self._exchange.unread_model = self._model
        if is_reported:
            facts = ResponseFacts(usage=usage, prefix=prefix, service_tier=tier, modalities=modalities)
        elif self._has_estimate():
            facts = ResponseFacts(estimated_usage=usage, service_tier=tier)
        else:
            facts = ResponseFacts(service_tier=tier)
        self._exchange.facts = facts
        if self._price is None or (not is_reported and not self._has_estimate()):
            return tokens, 0.0
        return tokens, self._price.cost(prompt, completion, prefix, None, tier, modalities) or 0.0

    def _has_estimate(self) -> bool:
        """Whether the bytes of the response estimate its tokens: a budget counts them, but those of images and audio are many."""
        return self._account.has_budget or 0 < self._size == len(self._body)

    def _read_response(self) -> JsonObject:
        """Return the response, or only its usage if it is large; empty if it is not readable."""
        body = bytes(self._body)
        if self._size > len(body):
            return _usage_at_end(body)
        try:
            return as_object(loads(body))
        except ValueError:
            return {}


def _usage_at_end(body: bytes) -> JsonObject:
    _, name, rest = body.rpartition(b'"usage":')
    try:
        usage, _ = JSONDecoder().raw_decode(rest.decode("utf-8", "replace").lstrip())
    except ValueError:
        return {}
    return {"usage": usage} if name and isinstance(usage, dict) else {}
