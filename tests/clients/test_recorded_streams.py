"""Streams in the published forms of many servers: the official SDKs read equal objects from the first stream and from hits.

Each file of `streams/API/` is a stream that we wrote in the form of one server. A stream that cannot be replayed with
certainty is forwarded, and not stored.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.requests import Request
from starlette.responses import Response

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.not_stored import UnstorableResponse
from kvproxy.flow.backend_response import UpstreamReader
from kvproxy.http.services import Services
from kvproxy.journal.reader import JournalReader
from kvproxy.operations.record_query import RecordQuery
from tests.servers import run_front, run_upstream, until_stored

STREAMS = Path(__file__).parent / "streams"
ROUTES = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
# Causes, by stream.
NOT_STORED: dict[str, str] = {
    "chat/openrouter_error_in_stream": "error",
    "messages/anthropic_error_in_stream": "error",
    "messages/anthropic_future_event": "unmergeable field event future_event",
    "messages/cut_off": "incomplete",
    "responses/openai_failed": "error response.failed",
    "responses/openai_future_event": "unmergeable field event response.future_event",
}
# Response tokens of streams that are not stored, if the stream reports them after its output.
RESPONSE_TOKENS = {
    "messages/anthropic_future_event": 8,
    "responses/openai_future_event": 12,
}
# A field that the SDK takes from the last event, which has less of it than the events before: the hit is complete.
COMPLETED = {
    "messages/litellm_two_message_deltas": "stop_reason",
    "responses/proxy_with_empty_terminal_event": "output",
    "responses/proxy_with_partial_terminal_event": "output",
}
# Fields that the SDKs add or number while they read a stream.
_ADDED = frozenset(("index", "parsed", "parsed_arguments", "parsed_output"))
_EMPTY: tuple[Any, ...] = (None, "", [], {})
# Fields of chunks and of choices that are read apart; padding against attacks by the length of chunks.
_HEAD = ("id", "object", "created", "model", "choices", "obfuscation", "p")
_CHOICE = ("index", "delta", "message", "logprobs", "text")
_PARTS = ("content", "thinking", "summary", "thinking_blocks")
_ONCE = ("role", "id", "type", "name", "format", "signature", "channel")
NAMES = sorted(f"{path.parent.name}/{path.stem}" for path in STREAMS.rglob("*.sse"))


@dataclass(slots=True)
class Proxy:
    url: str
    services: Services
    openai: Any
    anthropic: Any
    num_forwarded: int = 0


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    async def answer(request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=404)
        running.num_forwarded += 1
        api = next(name for name, route in ROUTES.items() if route == request.url.path)
        stream = (STREAMS / api / f"{(await request.json())['model']}.sse").read_bytes()
        return Response(stream, media_type="text/event-stream")

    with ExitStack() as stack:
        upstream = stack.enter_context(run_upstream(answer))
        url, services = stack.enter_context(run_front(tmp_path_factory.mktemp("data"), upstream))
        chat = stack.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0))
        claude = stack.enter_context(anthropic.Anthropic(base_url=url, api_key="k", max_retries=0))
        running = Proxy(url, services, chat, claude)
        yield running


def read(proxy: Proxy, api: str, model: str, *, stream: bool) -> Any:
    """Return the object that a user of the official SDK gets."""
    messages: Any = [{"role": "user", "content": "What colour is the sea?"}]
    if api == "messages":
        body: dict[str, Any] = {"model": model, "max_tokens": 99, "messages": messages}
        if not stream:
            return comparable(proxy.anthropic.beta.messages.create(**body).to_dict())
        with proxy.anthropic.beta.messages.stream(**body) as events:
            return comparable(events.get_final_message().to_dict())
    if api == "responses":
        if not stream:
            return comparable(proxy.openai.responses.create(model=model, input="What colour is the sea?").to_dict())
        with proxy.openai.responses.stream(model=model, input="What colour is the sea?") as found:
            return comparable(found.get_final_response().to_dict())
    create = proxy.openai.chat.completions.create
    if not stream:
        whole = create(model=model, messages=messages).to_dict(warnings=False)
        # Chunks name another object, and those of some servers none.
        assert whole.pop("object") in ("chat.completion", "")
        return comparable(whole)
    chunks = create(model=model, messages=messages, stream=True, stream_options={"include_usage": True})
    return comparable(joined([chunk.to_dict(warnings=False) for chunk in chunks]))


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the chunks of a chat. The SDK's own function loses late fields, and repeats the role."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for name in ("id", "created", "model"):
            whole[name] = whole.get(name) or chunk.get(name)
        whole |= {name: value for name, value in chunk.items() if name not in _HEAD and value not in _EMPTY}
        for each in chunk["choices"]:
            choice = choices.setdefault(each.get("index", 0), {"message": {}})
            join(choice["message"], each.get("delta") or {})
            join(choice.setdefault("logprobs", {}), each.get("logprobs") or {})
            choice["text"] = choice.get("text", "") + (each.get("text") or "")
            choice |= {name: value for name, value in each.items() if name not in _CHOICE and value not in _EMPTY}
    return whole | {"choices": [choices[index] for index in sorted(choices)]}


def join(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add the parts of a delta, as clients do."""
    for name, value in delta.items():
        # Groq repeats the call of its tool with the result.
        if value in _EMPTY or (name == "arguments" and value == whole.get(name)):
            continue
        has_parts = isinstance(value, list) and all(isinstance(each, dict) and "type" in each for each in value)
        if name in _PARTS and (has_parts or (isinstance(value, str) and isinstance(whole.get(name), list))):
            join_parts(whole, name, value)
        elif isinstance(value, str) and name not in _ONCE:
            whole[name] = whole.get(name, "") + value
        elif isinstance(value, dict):
            join(whole.setdefault(name, {}), value)
        elif isinstance(value, list) and all(isinstance(each, dict) and "index" in each for each in value):
            items = whole.setdefault(name, [])
            for each in value:
                items += [{} for _ in range(each["index"] + 1 - len(items))]
                join(items[each["index"]], each)
        elif isinstance(value, list):
            whole[name] = [*whole.get(name, []), *value]
        else:
            whole[name] = value


def join_parts(whole: dict[str, Any], name: str, value: Any) -> None:
    """Add parts of content, such as thoughts, as the clients of Mistral, Databricks, and LiteLLM do."""
    parts = whole.setdefault(name, [])
    for part in [{"type": "text", "text": value}] if isinstance(value, str) else value:
        if not parts or parts[-1].get("type") != part.get("type") or parts[-1].get("signature"):
            parts.append({})
        join(parts[-1], part)


def comparable(value: Any) -> Any:
    """Return a value without empty fields, and without fields that the SDKs add."""
    if isinstance(value, list):
        return [comparable(each) for each in value]
    if not isinstance(value, dict):
        return value
    fields = {name: comparable(each) for name, each in value.items() if name not in _ADDED}
    return {name: each for name, each in fields.items() if each not in _EMPTY}


def why_not_stored(api: ApiName, stream: bytes) -> str:
    """Return the cause for which a stream is not stored."""
    reader = UpstreamReader(APIS[api], stream=True, limit=1 << 20)
    reader.push(stream)
    try:
        cause = APIS[api].why_not_stored(asyncio.run(reader.result()), {})
    except UnstorableResponse as error:
        return str(error)
    return str(cause)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_STORED])
def test_hits_equal_the_first_stream(name: str, proxy: Proxy) -> None:
    api, _, model = name.partition("/")
    first = read(proxy, api, model, stream=True)
    until_stored(proxy.services)
    count = proxy.num_forwarded
    hit = read(proxy, api, model, stream=True)
    assert read(proxy, api, model, stream=False) == hit
    assert proxy.num_forwarded == count
    assert {field: value for field, value in hit.items() if field != COMPLETED.get(name)} == {
        field: value for field, value in first.items() if field != COMPLETED.get(name)
    }


@pytest.mark.parametrize("name", list(NOT_STORED))
def test_a_stream_that_is_not_certain_is_forwarded_each_time(name: str, proxy: Proxy) -> None:
    api, _, model = name.partition("/")
    stream = (STREAMS / f"{name}.sse").read_bytes()
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    for _ in range(2):
        count = proxy.num_forwarded
        assert httpx.post(f"{proxy.url}{ROUTES[api]}", json=body).content == stream
        until_stored(proxy.services)
        assert proxy.num_forwarded == count + 1
    assert why_not_stored(api, stream) == NOT_STORED[name]  # type: ignore[arg-type]
    proxy.services.journal.flush()
    with closing(JournalReader(Path(proxy.services.settings.data) / "journal.db")) as reader:
        record = reader.records(RecordQuery(limit=1))[0]
    assert record.completion_tokens == RESPONSE_TOKENS.get(name)
    assert (record.estimated_completion_tokens is None) == (name in RESPONSE_TOKENS)
