"""What a request costs its client: the prompt as estimated before it is sent, then what was used, as far as the answer tells."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from kvproxy.apis.json import Json, JsonMap, field, loads
from kvproxy.apis.request import BYTES_PER_TOKEN, Account, ApiRequest
from kvproxy.apis.sse import EventReader
from kvproxy.backends.protocol import Backend, Body, Relayed
from kvproxy.errors import KvproxyError
from kvproxy.flow.backend_response import Source, open_source

_IMAGE_TOKENS = 1000
"""What an image or another file in a prompt is counted with: its bytes tell nothing."""
_FILE = "data:"
_SLOW_BYTES = 64 * 1024
_READ_BYTES = 2**20
_NOT_FOR_THE_MODEL = ("metadata", "user", "safety_identifier", "prompt_cache_key")
_USAGE = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")


async def metered(request: ApiRequest, account: Account, backend: Backend, limit: int) -> Source:
    """Have a request answered at a client's cost.

    Args:
        limit: see `open_source`.

    Raises:
        TooMany: the client has used up what it may use now.
        KvproxyError: what the backend raised; then it costs nothing.
    """
    large = len(request.raw) > _SLOW_BYTES
    estimated = await asyncio.to_thread(estimate, request.body) if large else estimate(request.body)
    account.reserve(estimated)
    try:
        source = open_source(request, await backend.send(request), limit)
    except BaseException:
        account.settle(0)
        raise
    chunks, close, passed = source.chunks, source.close, 0
    events = EventReader()

    async def counted() -> AsyncIterator[bytes]:
        nonlocal passed
        async for chunk in chunks:
            # An event says about a token.
            if not source.streams:
                passed += len(chunk) // BYTES_PER_TOKEN
            elif len(events) <= limit:
                passed += len(events.push(chunk))
            yield chunk

    async def settled() -> None:
        account.settle(_used(source, estimated, passed))
        await close()

    source.chunks, source.close = counted(), settled
    return source


def _used(source: Source, estimated: int, passed: int) -> int:
    """Tokens of an answer that is over, whole or not."""
    if source.status >= 400:
        return 0
    if source.usage is not None and any(source.usage):
        return sum(source.usage)
    return (estimated if source.prefix is None else source.prefix.prompt_tokens) + passed


class UnreadSpending:
    """The cost of a request that is forwarded unread: its bytes and those of its response, at four bytes a token.

    If the response is a JSON object with `usage`, its tokens count instead.

    Args:
        account: of the client.
        announced: bytes of the body; 0 if the client sends chunks, which are charged as they arrive.

    Raises:
        TooMany: the client may use no more tokens now.
        TooLarge: the client may never use so many.
    """

    def __init__(self, account: Account, announced: int) -> None:
        self._account = account
        self._reserved = max(1, announced // BYTES_PER_TOKEN)
        account.reserve(self._reserved)
        self._uploaded = 0
        self._refused: KvproxyError | None = None
        self._body = bytearray()
        self._size = 0

    def upload(self, body: Body) -> Body:
        """The body, charged as it passes."""
        return body if isinstance(body, bytes) else self._charged(body)

    async def _charged(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in body:
            self._uploaded += len(part)
            more = self._uploaded // BYTES_PER_TOKEN - self._reserved
            if more > 0:
                try:
                    self._account.reserve(more)
                except KvproxyError as error:
                    self._refused = error
                    raise
                self._reserved += more
            yield part

    def failed(self, error: BaseException) -> None:
        """The request got no response. Raises the quota's refusal if that ended the upload."""
        self._account.settle(0)
        if self._refused is not None:
            raise self._refused from error

    def answer(self, reply: Relayed) -> Relayed:
        """The response, counted as it passes."""
        chunks, close = reply.chunks, reply.close
        readable = any(name == "content-type" and "json" in value for name, value in reply.headers)

        async def counted() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                self._size += len(chunk)
                if readable and self._size <= _READ_BYTES:
                    self._body += chunk
                yield chunk

        async def settled() -> None:
            self._account.settle(0 if reply.status >= 400 else self._used())
            await close()

        reply.chunks, reply.close = counted(), settled
        return reply

    def _used(self) -> int:
        if 0 < self._size == len(self._body):
            with contextlib.suppress(ValueError):
                usage = field(loads(bytes(self._body)), "usage")
                tokens = [field(usage, name) for name in _USAGE]
                known = [count for count in tokens if isinstance(count, int) and not isinstance(count, bool)]
                if known:
                    return sum(known)
        return self._reserved + self._size // BYTES_PER_TOKEN


def estimate(body: JsonMap) -> int:
    """Estimate the tokens of a request without a tokenizer: a quarter of the bytes of all its texts and names."""
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
                todo += [_FILE if name == "data" else each for name, each in fields.items()]
            case int():
                # A prompt may be given as tokens.
                total += 1
    return total
