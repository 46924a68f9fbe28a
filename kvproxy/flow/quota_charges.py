"""Charges a request to its client's quota: estimated tokens before the response, and the reported usage after it."""

from collections.abc import AsyncIterator, Awaitable, Callable

from kvproxy.apis.api_request import BYTES_PER_TOKEN, ApiRequest, in_thread_if_large
from kvproxy.apis.json import Json, JsonMap, as_object, loads
from kvproxy.apis.reported_usage import UsageLimits, UsageLog, possible_tokens, tokens_used
from kvproxy.apis.sse import EventReader
from kvproxy.backends.protocol import Body, RelayedResponse
from kvproxy.clients.quotas import Account
from kvproxy.errors import KvproxyError
from kvproxy.flow.backend_response import BackendResponse

_IMAGE_TOKENS = 1000
"""Estimated tokens of an image or a file."""
_FILE = "data:"
_READ_BYTES = 2**20
_NOT_FOR_THE_MODEL = ("metadata", "user", "safety_identifier", "prompt_cache_key")


async def send_charged(
    request: ApiRequest, account: Account, send: Callable[[], Awaitable[BackendResponse]], max_response_bytes: int
) -> BackendResponse:
    """Send a request, and charge its tokens to the account. A request that fails costs nothing."""
    estimated = await in_thread_if_large(len(request.raw), lambda: estimate_prompt_tokens(request.body))
    await account.reserve(estimated)
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

    _observe_chunks(response, count, lambda: account.settle(_tokens_to_charge(response, estimated, generated)))
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


class UnparsedRequestCharge:
    """Charges a quota for a request that the proxy forwards without parsing it.

    The charge is the `usage` in a JSON response, or else one token per four bytes of request and response. `content_length`
    is 0 if it is unknown.
    """

    def __init__(self, account: Account, content_length: int, log: UsageLog) -> None:
        self._account = account
        self._log = log
        self._reserved = max(1, content_length // BYTES_PER_TOKEN)
        self._uploaded = 0
        self._refused: KvproxyError | None = None
        self._body = bytearray()
        self._size = 0

    async def reserve(self) -> None:
        await self._account.reserve(self._reserved)

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

        _observe_chunks(reply, count, lambda: self._account.settle(0 if reply.status >= 400 else self._tokens_used()))
        return reply

    def _tokens_used(self) -> int:
        if 0 < self._size == len(self._body):
            try:
                response = as_object(loads(bytes(self._body)))
            except ValueError:
                response = {}
            sent = max(self._uploaded, BYTES_PER_TOKEN * self._reserved)
            limits = UsageLimits(possible_tokens(sent), possible_tokens(self._size))
            is_possible = self._log.check(response, "the upstream", limits)
            if is_possible and (tokens := tokens_used(response)) is not None:
                return tokens
        return self._reserved + self._size // BYTES_PER_TOKEN


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
