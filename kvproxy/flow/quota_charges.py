"""Charges a request to its client's quota and budget: an estimate before the response, and the reported usage after it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from kvproxy.apis.api_request import BYTES_PER_TOKEN, in_thread_if_large
from kvproxy.apis.json import Json, JsonMap, as_object, as_token_count, loads
from kvproxy.apis.reported_usage import (
    PrefixReuse,
    UsageLimits,
    UsageLog,
    possible_tokens,
    reported_reuse,
    tokens_used,
)
from kvproxy.apis.sse import EventReader
from kvproxy.backends.protocol import Body, RelayedResponse
from kvproxy.clients.quotas import Account
from kvproxy.errors import Forbidden, KvproxyError
from kvproxy.exchange import Exchange
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.journal.spending import PaidRequest
from kvproxy.settings.journal import PriceSettings

_IMAGE_TOKENS = 1000
"""Estimated tokens of an image or a file."""
UNLIMITED_OUTPUT_TOKENS = 16_384
"""Tokens of a response to reserve money for, if the request has no limit."""
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_CHOICES = ("n", "best_of")
_WITHOUT_OUTPUT = ("embeddings", "rerank", "score", "moderations", "classify", "pooling", "tokenize")
"""Last parts of paths whose responses have no generated tokens."""
_FILE = "data:"
_READ_BYTES = 2**20
_NOT_FOR_THE_MODEL = ("metadata", "user", "safety_identifier", "prompt_cache_key")


@dataclass(frozen=True, slots=True)
class RequestPrice:
    """Prices a request of a client with a budget. `arrived` is in seconds since the epoch."""

    prices: Mapping[str, PriceSettings]
    model: str
    arrived: float

    def cost(
        self, prompt: int, completion: int, prefix: PrefixReuse | None = None, model: str | None = None
    ) -> float | None:
        """Return the price of numbers of tokens; None if the model has no price. `model` is the one that answered."""
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
        )
        cost = paid.cost(self.prices)
        # A fallback without a price costs as much as the requested model, whose price is known.
        return self.cost(prompt, completion, prefix) if cost is None and model not in (None, self.model) else cost

    def reservation(self, prompt: int, completion: int) -> float | None:
        """Return the most that so many tokens may cost, whether the provider's cache stores the prompt or not."""
        writes = None, PrefixReuse(prompt, 0, prompt, 0), PrefixReuse(prompt, 0, 0, prompt)
        return max(
            (cost for prefix in writes if (cost := self.cost(prompt, completion, prefix)) is not None), default=None
        )


async def reserve(account: Account, tokens: int, output: int, model: str, arrived: float) -> RequestPrice | None:
    """Charge the estimated tokens of a prompt, and reserve their price and that of the most tokens of the response.

    Return the price of the request; None if the client has no budget.

    Raises Forbidden if the model has no price, and the errors of `Account.reserve`.
    """
    if account.prices is None:
        await account.reserve(tokens)
        return None
    price = RequestPrice(account.prices, model, arrived)
    # The first call reads the price list.
    cost = await asyncio.to_thread(price.reservation, tokens, output)
    if cost is None:
        raise Forbidden(
            f"the client {account.client.name} has a budget, and the model {model[:100]!r} has no price: ask the operator to set"
            f' [journal.prices."{model[:100]}"], or to remove the budget (kvproxy keys set --unlimited)',
            param="model",
        )
    await account.reserve(tokens, cost)
    return price


async def send_charged(
    exchange: Exchange, account: Account, send: Callable[[], Awaitable[BackendResponse]], max_response_bytes: int
) -> BackendResponse:
    """Send a request, and charge its tokens to the account. A request that fails costs nothing."""
    request, arrived = exchange.api_request, exchange.arrived
    estimated = await in_thread_if_large(len(request.raw), lambda: estimate_prompt_tokens(request.body))
    output = most_output_tokens(request.api.path, request.body)
    price = await reserve(account, estimated, output, request.model, arrived)
    try:
        response = await send()
    except BaseException:
        account.settle(0)
        raise
    generated, events = 0, EventReader()

    def count(chunk: bytes) -> None:
        nonlocal generated
        # An event has about one token.
        if not response.streams:
            generated += len(chunk) // BYTES_PER_TOKEN
        elif len(events) <= max_response_bytes:
            generated += len(events.push(chunk))

    def settle() -> None:
        money = 0.0 if price is None else _money_to_charge(response, price, estimated, generated)
        account.settle(_tokens_to_charge(response, estimated, generated), money)

    _observe_chunks(response, count, settle)
    return response


def _observe_chunks(
    response: BackendResponse | RelayedResponse, on_chunk: Callable[[bytes], None], on_close: Callable[[], None]
) -> None:
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


def _tokens_to_charge(response: BackendResponse, estimated: int, generated: int) -> int:
    if response.status >= 400:
        return 0
    usage, prefix = response.facts.usage, response.facts.prefix
    if any(usage):
        return sum(count or 0 for count in usage)
    return (estimated if prefix is None else prefix.prompt_tokens) + generated


def _money_to_charge(response: BackendResponse, price: RequestPrice, estimated: int, generated: int) -> float:
    if response.status >= 400:
        return 0.0
    facts = response.facts
    prompt = estimated if facts.prompt_tokens is None else facts.prompt_tokens
    completion = generated if facts.completion_tokens is None else facts.completion_tokens
    fallback = None if facts.served_by is None else facts.served_by.fallback
    return price.cost(prompt, completion, facts.prefix, fallback or None) or 0.0


class UnparsedRequestCharge:
    """Charges a quota for a request that the proxy forwards without parsing it.

    The charge is the `usage` in a JSON response, or else one token per four bytes of request and response.

    Args:
        model: the model to pay for, if the client has a budget; None if the request costs no money.
        content_length: 0 if it is unknown.
        output: the most tokens of the response.
    """

    def __init__(
        self,
        account: Account,
        content_length: int,
        log: UsageLog,
        model: str | None = None,
        output: int = 0,
        arrived: float = 0.0,
    ) -> None:
        self._account = account
        self._log = log
        self._model = model
        self._output = output
        self._arrived = arrived
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
            self._price = await reserve(self._account, self._reserved, self._output, self._model, self._arrived)

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
        """Refund a failed request. If the quota stopped its upload, raise the quota's error from `error`."""
        self._account.settle(0)
        if self._refused is not None:
            # The quota's error is also the cause of `error`, and its traceback refers to this charge.
            error.__context__ = None
            try:
                raise self._refused from error
            finally:
                self._refused = None

    def charge_response(self, reply: RelayedResponse) -> RelayedResponse:
        is_json = any(name == "content-type" and "json" in value for name, value in reply.headers)

        def count(chunk: bytes) -> None:
            self._size += len(chunk)
            if is_json and self._size <= _READ_BYTES:
                self._body += chunk

        def settle() -> None:
            if reply.status >= 400:
                self._account.settle(0)
            else:
                self._account.settle(*self._usage())

        _observe_chunks(reply, count, settle)
        return reply

    def _usage(self) -> tuple[int, float]:
        """Return the used tokens, and their price."""
        prompt, completion, prefix = self._reserved, self._size // BYTES_PER_TOKEN, None
        tokens = prompt + completion
        if 0 < self._size == len(self._body):
            try:
                response = as_object(loads(bytes(self._body)))
            except ValueError:
                response = {}
            sent = max(self._uploaded, BYTES_PER_TOKEN * self._reserved)
            limits = UsageLimits(possible_tokens(sent), possible_tokens(self._size))
            is_possible = self._log.check(response, "the upstream", limits)
            if is_possible and (used := tokens_used(response)) is not None:
                tokens, (prompt, completion), prefix = sum(used), used, reported_reuse(response)
                prompt = prompt if prefix is None else prefix.prompt_tokens
        money = None if self._price is None else self._price.cost(prompt, completion, prefix)
        return tokens, money or 0.0


def most_output_tokens(path: str, body: JsonMap) -> int:
    """Return the most tokens that a request allows for its response: `UNLIMITED_OUTPUT_TOKENS` without a limit."""
    if path.rpartition("/")[2] in _WITHOUT_OUTPUT:
        return 0
    limits = (as_token_count(body.get(name)) for name in _OUTPUT_LIMITS)
    limit = next((limit for limit in limits if limit is not None), UNLIMITED_OUTPUT_TOKENS)
    prompts = body.get("prompt")
    # A list of numbers is one prompt.
    several = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    return limit * several * max(as_token_count(body.get(name)) or 1 for name in _CHOICES)


def estimate_prompt_tokens(body: JsonMap) -> int:
    """Estimate the tokens of a prompt: one per four bytes of all strings and field names in the body."""
    total = 0
    todo: list[Json] = [{name: value for name, value in body.items() if name not in _NOT_FOR_THE_MODEL}]
    while todo:
        match todo.pop():
            case str() as text:
                total += (
                    _IMAGE_TOKENS
                    if text.startswith(_FILE)
                    else -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
                )
            case list() as items:
                todo += items
            case dict() as fields:
                total += sum(len(name) for name in fields) // BYTES_PER_TOKEN
                # The source of an image in Anthropic's form.
                todo += [_FILE if name == "data" else inner for name, inner in fields.items()]
            case int():
                # A prompt may be given as tokens.
                total += 1
    return total
