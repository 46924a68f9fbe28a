"""What a request costs its client: the prompt as estimated before it is sent, then what was used, as far as the answer tells."""

from collections.abc import AsyncIterator

from kvproxy.apis.json import Json, JsonMap
from kvproxy.apis.request import BYTES_PER_TOKEN, Account, ApiRequest
from kvproxy.apis.sse import EventReader
from kvproxy.backends.protocol import Backend
from kvproxy.flow.flight.source import Source, open_source

_IMAGE_TOKENS = 1000
"""What an image or another file in a prompt is counted with: its bytes tell nothing."""
_PROMPT = ("messages", "system", "instructions", "prompt", "input", "tools")
_FILE = "data:"


async def metered(request: ApiRequest, account: Account, backend: Backend, limit: int) -> Source:
    """Have a request answered at a client's cost.

    Args:
        limit: see `open_source`.

    Raises:
        TooMany: the client has used up what it may use now.
        KvproxyError: what the backend raised; then it costs nothing.
    """
    estimated = estimate(request.body)
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


def estimate(body: JsonMap) -> int:
    """Tokens of a request's prompt, without its tokenizer: a quarter of its bytes."""
    return sum(_tokens(body[name]) for name in _PROMPT if name in body)


def _tokens(value: Json) -> int:
    total, todo = 0, [value]
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
                # The source of an image in Anthropic's form.
                todo += [_FILE if name == "data" else each for name, each in fields.items()]
            case int():
                # A prompt may be given as tokens.
                total += 1
    return total
