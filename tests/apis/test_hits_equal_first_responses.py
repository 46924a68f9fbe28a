"""A hit as a stream and as JSON equals the first stream, as the official SDKs read them.

`KVPROXY_STREAMS=10000 python -m pytest tests/apis/test_hits_equal_first_responses.py` tries 10,000 streams.
"""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
from hypothesis import HealthCheck, given, settings
from openai.lib.streaming.chat import ChatCompletionStreamState

from kvproxy.apis import APIS
from kvproxy.apis.api import response_for_client
from kvproxy.apis.json import as_object, dumps, loads
from kvproxy.flow.backend_response import UpstreamReader
from tests.apis.random_streams import FRAMINGS, STREAMS, Framing, RandomStream

NUM_STREAMS = int(os.environ.get("KVPROXY_STREAMS", "150"))
MESSAGES: Any = [{"role": "user", "content": "x"}]


def http_client(library: Any, chunks: list[bytes], media_type: str) -> Any:
    """Return a client of `httpx`, or of its successor, that receives a response in these chunks."""

    class Body(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield from chunks

    def answer(request: Any) -> Any:
        return library.Response(200, headers={"content-type": media_type}, stream=Body())

    return library.Client(transport=library.MockTransport(answer))


def read_with_sdk(api: str, chunks: list[bytes], *, stream: bool) -> dict[str, Any]:
    """Return the object that the official SDK makes of a response."""
    library = httpx2 if api == "messages" else httpx
    http = http_client(library, chunks, "text/event-stream" if stream else "application/json")
    if api == "messages":
        claude = anthropic.Anthropic(api_key="x", base_url="http://upstream", http_client=http)
        if not stream:
            return claude.messages.create(model="m", max_tokens=9, messages=MESSAGES).to_dict()
        with claude.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as events:
            return events.get_final_message().to_dict()
    client = openai.OpenAI(api_key="x", base_url="http://upstream/v1", http_client=http)
    if api == "responses":
        if not stream:
            return client.responses.create(model="m", input="x").to_dict()
        with client.responses.stream(model="m", input="x") as found:
            return found.get_final_response().to_dict()
    if api == "completions":
        if not stream:
            return client.completions.create(model="m", prompt="x").to_dict()
        return joined([each.to_dict() for each in client.completions.create(model="m", prompt="x", stream=True)])
    if not stream:
        return client.chat.completions.create(model="m", messages=MESSAGES).to_dict()
    state: Any = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(model="m", messages=MESSAGES, stream=True):
        state.handle_chunk(chunk)
    return state.get_final_completion().to_dict()


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the chunks of a completion, for which the SDK has no function."""
    choices: dict[int, dict[str, Any]] = {}
    for choice in (each for chunk in chunks for each in chunk["choices"]):
        whole = choices.setdefault(choice["index"], {"index": choice["index"], "text": "", "logprobs": {}})
        whole["text"] += choice["text"]
        whole["finish_reason"] = choice["finish_reason"] or whole.get("finish_reason")
        for name, values in (choice.get("logprobs") or {}).items():
            whole["logprobs"][name] = whole["logprobs"].get(name, []) + values
    return chunks[0] | {"choices": list(choices.values()), "usage": chunks[-1].get("usage")}


def comparable(value: Any, ignored: frozenset[str]) -> Any:
    """Return a value without empty fields, and without fields that the SDKs add or lose."""
    if isinstance(value, list):
        return [comparable(each, ignored) for each in value]
    if not isinstance(value, dict):
        return value
    fields = {name: comparable(each, ignored) for name, each in value.items() if name not in ignored}
    return {name: each for name, each in fields.items() if each not in (None, "", [], {})}


@settings(deadline=None, max_examples=NUM_STREAMS, suppress_health_check=list(HealthCheck))
@given(STREAMS, FRAMINGS)
def test_the_sdk_reads_equal_objects_from_the_first_stream_and_from_hits(
    stream: RandomStream, framing: Framing
) -> None:
    api, first = APIS[stream.api], framing.write(stream)
    reader = UpstreamReader(api, stream=True, limit=1 << 20)
    for chunk in first:
        reader.push(chunk)
    whole = asyncio.run(reader.result())
    assert api.why_not_stored(whole, {}) is None
    stored = dumps(whole)
    body = {"stream": True, "stream_options": {"include_usage": stream.asks_usage}}
    replayed = list(api.replay(as_object(loads(stored)), body))
    # The SDK numbers streamed tool calls.
    ignored = frozenset(("index", "parsed", "parsed_arguments", "parsed_output"))
    hit = read_with_sdk(stream.api, replayed, stream=True)
    as_json = read_with_sdk(stream.api, [response_for_client(stored)], stream=False)
    # The SDK reads a final event only before a blank line.
    if stream.is_complete_at_end and (framing.blank_line or stream.api != "responses"):
        original = read_with_sdk(stream.api, first, stream=True)
        assert comparable(original, ignored) == comparable(hit, ignored)
    lost = frozenset(stream.lost)
    assert comparable(hit, ignored | lost) == comparable(as_json, ignored | lost)
    assert all(name in as_json or name in as_json["choices"][0] for name in lost - {"stop_reason"})
