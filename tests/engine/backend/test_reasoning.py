"""The reasoning of the embedded engine's model, as the real clients receive it and send it back."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproxy.settings import load_settings
from tests.servers import run_proxy
from tests.thinking_model import make_reasoning_end_frequent, make_thinking_model

BLOCK = 16
QUESTION = "What is a block?"
SAMPLED = {"temperature": 1.0, "max_tokens": 200}


@pytest.fixture(scope="module", autouse=True)
def load_clients() -> None:
    """Import the packages for these tests only: they take seconds, and every worker imports all files."""
    global anthropic, openai
    import anthropic
    import openai


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_thinking_model(tmp_path_factory.mktemp("model") / "thinking", opens="true")
    make_reasoning_end_frequent(folder)
    return folder


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = load_settings(
        data=tmp_path_factory.mktemp("data"),
        model=str(model),
        engine={"num_blocks": 2048},
        cache={"semantic": False},
        rules=({"name": "agents", "repair_history": True},),
    )
    with run_proxy(settings) as (url, _):
        yield url


def test_the_openai_client_receives_reasoning_in_chats_and_streams(url: str, model: Path) -> None:
    with openai.OpenAI(api_key="k", base_url=f"{url}/v1") as client:
        asked: Any = {"model": str(model), "messages": [{"role": "user", "content": QUESTION}], "seed": 1, **SAMPLED}
        whole = client.chat.completions.create(**asked)
        replay = list(client.chat.completions.create(**asked, stream=True))
        fresh = list(client.chat.completions.create(**asked, stream=True, extra_headers={"Cache-Control": "no-cache"}))
    message: Any = whole.choices[0].message
    assert message.reasoning_content
    assert message.content
    assert "think>" not in message.reasoning_content
    details = whole.usage and whole.usage.completion_tokens_details
    assert details
    assert 0 < (details.reasoning_tokens or 0) < whole.usage.completion_tokens
    for chunks in (replay, fresh):
        deltas: list[Any] = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
        assert "".join(delta.content or "" for delta in deltas) == message.content


def test_the_anthropic_client_receives_thinking_blocks(url: str, model: Path) -> None:
    with anthropic.Anthropic(api_key="k", base_url=url) as client:
        asked: Any = {"model": str(model), "messages": [{"role": "user", "content": QUESTION}]}
        asked |= {"max_tokens": 200, "extra_body": {"temperature": 1.0}}
        streamed: Any = None
        while streamed is None or not streamed.content[-1].text:
            with client.messages.stream(**asked, extra_headers={"Cache-Control": "no-cache"}) as stream:
                streamed = stream.get_final_message()
        replayed = client.messages.create(**asked, extra_headers={"Cache-Control": "max-age=3600"})
    for message in (streamed, replayed):
        thinking, text = message.content
        assert thinking.type == "thinking"
        assert thinking.thinking
        assert text.type == "text"
        assert text.text
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in replayed.content]


def test_the_responses_api_has_a_reasoning_item(url: str, model: Path) -> None:
    with openai.OpenAI(api_key="k", base_url=f"{url}/v1") as client:
        asked: Any = {"model": str(model), "input": QUESTION, "temperature": 1.0, "max_output_tokens": 200}
        events = list[Any]()
        while not any(event.type == "response.output_text.delta" for event in events):
            events = list(client.responses.create(**asked, stream=True, extra_headers={"Cache-Control": "no-cache"}))
        cached = {"Cache-Control": "max-age=3600"}
        stored = client.responses.create(**asked, extra_headers=cached)
        replayed = list[Any](client.responses.create(**asked, stream=True, extra_headers=cached))
    assert _merged(replayed) == _merged(events)
    reasoning, answer = stored.output
    assert reasoning.type == "reasoning"
    assert reasoning.content
    assert answer.type == "message"
    assert stored.output_text
    names = ("response.reasoning_text.delta", "response.output_text.delta")
    texts = ["".join(event.delta for event in events if event.type == name) for name in names]
    assert texts == [reasoning.content[0].text, stored.output_text]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == [reasoning, answer]
    added = [event.output_index for event in events if event.type == "response.output_item.added"]
    assert added == [0, 1]


def _merged(events: list[Any]) -> list[dict[str, Any]]:
    """Events without their numbers, and consecutive deltas as one."""
    merged: list[dict[str, Any]] = []
    for event in (each.to_dict() for each in events):
        del event["sequence_number"]
        if merged and event["type"] == merged[-1]["type"] and "delta" in event:
            merged[-1]["delta"] += event["delta"]
        else:
            merged.append(event)
    return merged


def converse(client: Any, model: Path, messages: list[Any]) -> Any:
    while True:
        whole = client.chat.completions.create(
            model=str(model),
            messages=messages,
            temperature=2,
            max_tokens=60,
            extra_headers={"cache-control": "no-cache"},
        )
        # This model may end its reasoning twice or never.
        if (content := whole.choices[0].message.content) and "</think>" not in content:
            return whole


def test_a_client_that_drops_reasoning_loses_no_block(url: str, model: Path) -> None:
    lost = 0
    draw = random.Random(0)
    words = "cache block prefix engine token queue chain evict hash pool model prompt answer".split()
    with openai.OpenAI(api_key="k", base_url=f"{url}/v1") as client:
        messages: list[Any] = []
        before: Any = None
        for _ in range(3):
            text = f"{draw.random()} {' '.join(draw.choices(words, k=40))}"
            messages.append({"role": "user", "content": text})
            whole = converse(client, model, messages)
            usage: Any = whole.usage
            if before is not None:
                tokens = before.prompt_tokens + before.completion_tokens
                lost += max(0, (tokens - 1) // BLOCK * BLOCK - usage.prompt_tokens_details.cached_tokens)
            before, message = usage, whole.choices[0].message
            messages.append({"role": "assistant", "content": message.content})
    assert lost == 0
