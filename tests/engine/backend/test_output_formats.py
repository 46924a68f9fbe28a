"""JSON schemas and tool calls of the embedded engine; `tests/apis/test_codecs.py` has the formats of all APIs."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kvproxy.apis import APIS
from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest
from kvproxy.apis.codecs import CODECS
from kvproxy.apis.sse import EventReader
from kvproxy.engine.async_llm import AsyncLLM
from kvproxy.engine.backend import EmbeddedBackend
from kvproxy.engine.models.loader import LoadedModel, load_model
from kvproxy.settings import EngineSettings
from tests.engine.templates import HERMES

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Basel"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


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


def body_of(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the weather?"}]
    return {"model": "demo", "temperature": 1.0, "max_tokens": 120, "messages": messages} | fields


def with_tools(choice: Any) -> dict[str, Any]:
    functions = [{"name": name, "parameters": CITY} for name in ("weather", "forecast")]
    return body_of(tools=[{"type": "function", "function": each} for each in functions], tool_choice=choice)


async def answer(backend: EmbeddedBackend, body: dict[str, Any]) -> tuple[str, list[tuple[str, Any]], str]:
    """Return text, calls, and finish reason of a response; the assembled stream has the same ones."""
    request = ApiRequest(APIS["chat"], body | {"stream": True}, b"", {}, PUBLIC_TENANT, "r")
    reply = await backend.send(request)
    encoder, assembler = CODECS["chat"].encoder(request, "demo", None), APIS["chat"].assembler()
    written = b""
    try:
        async for piece in reply.pieces:
            written += b"".join(encoder.write(piece))
    finally:
        await reply.close()
    for event in EventReader().push(written + b"".join(encoder.end())):
        assembler.push(event)
    found = read(encoder.response())
    assert read(assembler.result()) == found
    return found


def read(response: Any) -> tuple[str, list[tuple[str, Any]], str]:
    (choice,) = response["choices"]
    functions = [call["function"] for call in choice["message"].get("tool_calls", [])]
    calls = [(each["name"], json.loads(each["arguments"])) for each in functions]
    return choice["message"]["content"] or "", calls, choice["finish_reason"]


async def test_json_follows_a_schema(backend: EmbeddedBackend) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    text, calls, _ = await answer(backend, body_of(response_format=form))
    told = json.loads(text)
    assert told["city"] in ("Bern", "Basel")
    assert 1 <= told["days"] <= 9
    assert calls == []


async def test_a_required_call(backend: EmbeddedBackend) -> None:
    text, calls, how = await answer(backend, with_tools("required"))
    assert text == ""
    assert calls
    for name, arguments in calls:
        assert name in ("weather", "forecast")
        assert set(arguments) == {"city", "days"}
    # An endless sequence of calls is truncated.
    assert how in ("tool_calls", "length")


async def test_an_optional_call_may_be_text(backend: EmbeddedBackend) -> None:
    text, calls, _ = await answer(backend, with_tools("auto"))
    # The demo model does not support tools.
    assert text
    assert calls == []


async def test_one_named_tool_is_called_once(backend: EmbeddedBackend) -> None:
    _, calls, how = await answer(backend, with_tools({"type": "function", "function": {"name": "forecast"}}))
    assert [name for name, _ in calls] == ["forecast"]
    assert how == "tool_calls"
