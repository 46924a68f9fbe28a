"""JSON schemas and tool calls of the embedded engine in each API, whole and as a stream."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api import ApiName
from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest
from kvproxy.apis.codecs import CODECS
from kvproxy.apis.sse import EventReader
from kvproxy.backends.embedded import EmbeddedBackend
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.models.loader import LoadedModel, load_model
from kvproxy.settings import EngineSettings
from tests.engine.templates import HERMES

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Basel"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
APIS_OF_CHATS: list[ApiName] = ["chat", "messages", "responses"]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    loaded = load_model("demo", "cpu")
    loaded.tokenizer._tokenizer.chat_template = HERMES
    return loaded


@pytest.fixture
async def backend(loaded: LoadedModel) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(AsyncLLM(loaded, EngineSettings(num_blocks=300)))
    await backend.start()
    yield backend
    await backend.close()


def body_of(api: ApiName, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the weather?"}]
    most = "max_output_tokens" if api == "responses" else "max_tokens"
    asked: dict[str, Any] = {"input": messages} if api == "responses" else {"messages": messages}
    return {"model": "demo", "temperature": 1.0, most: 120} | asked | fields


def with_schema(api: ApiName) -> dict[str, Any]:
    form = {"type": "json_schema", "schema": CITY}
    if api == "chat":
        return body_of(api, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}})
    return (
        body_of(api, text={"format": form | {"name": "x"}}) if api == "responses" else body_of(api, output_format=form)
    )


def with_tools(api: ApiName, choice: str) -> dict[str, Any]:
    names = ("weather", "forecast")
    if api == "messages":
        tools = [{"name": name, "input_schema": CITY} for name in names]
        chosen: Any = {"type": {"required": "any"}.get(choice, choice)}
        return body_of(api, tools=tools, tool_choice=chosen)
    functions = [{"name": name, "parameters": CITY} for name in names]
    if api == "responses":
        return body_of(api, tools=[{"type": "function", **function} for function in functions], tool_choice=choice)
    return body_of(api, tools=[{"type": "function", "function": each} for each in functions], tool_choice=choice)


async def answer(backend: EmbeddedBackend, api: ApiName, body: dict[str, Any]) -> dict[str, Any]:
    """Return the whole response, after comparison with the assembled stream."""
    request = ApiRequest(APIS[api], body | {"stream": True}, b"", {}, PUBLIC_TENANT, "r")
    reply = await backend.send(request)
    encoder = CODECS[api].encoder(request, "demo", None)
    assembler, reader = APIS[api].assembler(), EventReader()
    written = b""
    try:
        async for piece in reply.pieces:
            written += b"".join(encoder.write(piece))
    finally:
        await reply.close()
    written += b"".join(encoder.end())
    for event in reader.push(written):
        assembler.push(event)
    whole = encoder.response()
    assembled = assembler.result()
    assert assembled is not None
    assert said(api, assembled) == said(api, whole)
    return whole


def said(api: ApiName, whole: Any) -> tuple[str, list[tuple[str, Any]], str]:
    """Return text, calls and finish reason."""
    if api == "chat":
        (choice,) = whole["choices"]
        message = choice["message"]
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", [])
        ]
        return message["content"] or "", calls, choice["finish_reason"]
    if api == "messages":
        texts = [block["text"] for block in whole["content"] if block["type"] == "text"]
        calls = [(block["name"], block["input"]) for block in whole["content"] if block["type"] == "tool_use"]
        return "".join(texts), calls, whole["stop_reason"]
    items = whole["output"]
    texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    calls = [(item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"]
    return "".join(texts), calls, whole["status"]


@pytest.mark.parametrize("api", APIS_OF_CHATS)
async def test_json_follows_a_schema(backend: EmbeddedBackend, api: ApiName) -> None:
    text, calls, _ = said(api, await answer(backend, api, with_schema(api)))
    told = json.loads(text)
    assert told["city"] in ("Bern", "Basel")
    assert 1 <= told["days"] <= 9
    assert calls == []


@pytest.mark.parametrize("api", APIS_OF_CHATS)
async def test_a_required_call(backend: EmbeddedBackend, api: ApiName) -> None:
    text, calls, how = said(api, await answer(backend, api, with_tools(api, "required")))
    assert text == ""
    assert calls
    for name, arguments in calls:
        assert name in ("weather", "forecast")
        assert set(arguments) == {"city", "days"}
    # An endless sequence of calls is truncated.
    assert how in {"chat": ("tool_calls", "length"), "messages": ("tool_use", "max_tokens")}.get(
        api, ("completed", "incomplete")
    )


@pytest.mark.parametrize("api", APIS_OF_CHATS)
async def test_an_optional_call_may_be_text(backend: EmbeddedBackend, api: ApiName) -> None:
    text, calls, _ = said(api, await answer(backend, api, with_tools(api, "auto")))
    # The demo model does not support tools.
    assert text
    assert calls == []


async def test_one_named_tool_is_called_once(backend: EmbeddedBackend) -> None:
    body = with_tools("chat", "auto") | {"tool_choice": {"type": "function", "function": {"name": "forecast"}}}
    _, calls, how = said("chat", await answer(backend, "chat", body))
    assert [name for name, _ in calls] == ["forecast"]
    assert how == "tool_calls"
