"""The clients that people use, unchanged, against a proxy in front of another one with the embedded engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.servers import run_proxy
from tests.statuses import makes_entry

QUESTION = "What is a block?"
ANSWER = "A block is a fixed number of tokens"
REWORDED = "Can you tell me what a block is?"
GREEDY = {"temperature": 0}
"""The client has no argument for it any more."""


@pytest.fixture(scope="module")
def url(demo: tuple[str, Services], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second proxy, with the first one as its upstream."""
    data: Path = tmp_path_factory.mktemp("front")
    with run_proxy(load_settings(data=data, upstream=demo[0])) as (url, _):
        yield url


@pytest.fixture
def claude(url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    # It takes seconds, and every worker imports all files.
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key=request.node.name, max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    import openai

    with openai.OpenAI(base_url=f"{url}/v1", api_key=request.node.name, max_retries=0) as client:
        yield client


def last_status(response: Any) -> str:
    """What the proxy that was asked says; one behind it comes before."""
    return str(response.headers["cache-status"]).rsplit(", ", 1)[-1]


def test_anthropic_messages(claude: Any) -> None:
    def ask(question: str) -> Any:
        return claude.messages.with_raw_response.create(
            model="demo",
            max_tokens=80,
            extra_body=GREEDY,
            system="You know kvproxy.",
            messages=[{"role": "user", "content": question}],
        )

    miss = ask(QUESTION)
    assert makes_entry(last_status(miss))
    message = miss.parse()
    assert message.content[0].text.startswith(ANSWER)
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 3
    exact = ask(QUESTION)
    assert 'detail="exact"' in last_status(exact)
    assert exact.parse() == message
    similar = ask(REWORDED)
    assert "semantic similarity" in last_status(similar)
    assert similar.parse().content == message.content


def test_anthropic_streams_live_and_replayed(claude: Any) -> None:
    def stream() -> tuple[str, Any]:
        with claude.messages.stream(
            model="demo", max_tokens=80, extra_body=GREEDY, messages=[{"role": "user", "content": QUESTION}]
        ) as events:
            text = "".join(events.text_stream)
            return text, events.get_final_message()

    live, whole = stream()
    again, same = stream()
    assert live == again == whole.content[0].text
    assert live.startswith(ANSWER)
    assert whole == same
    got = claude.messages.create(
        model="demo", max_tokens=80, extra_body=GREEDY, messages=[{"role": "user", "content": QUESTION}]
    )
    assert got.content[0].text == live


def test_anthropic_conversations_with_tools(claude: Any) -> None:
    import anthropic

    turns: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Look it up."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "u", "name": "look", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": "found"}]},
    ]
    tools: list[Any] = [{"name": "look", "input_schema": {"type": "object"}}]
    options: Any = {"tools": tools, "tool_choice": {"type": "none"}}
    statuses = [
        last_status(claude.messages.with_raw_response.create(model="demo", max_tokens=5, messages=turns, **options))
        for _ in range(2)
    ]
    with pytest.raises(anthropic.BadRequestError, match="cannot parse the tool calls"):
        claude.messages.create(model="demo", max_tokens=5, messages=turns, tools=tools)
    assert makes_entry(statuses[0])
    assert 'detail="exact"' in statuses[1]


def test_openai_responses(gpt: Any) -> None:
    import openai

    def ask(question: Any) -> Any:
        return gpt.responses.with_raw_response.create(
            model="demo", instructions="You know kvproxy.", input=question, temperature=0, max_output_tokens=80
        )

    miss = ask(QUESTION)
    assert makes_entry(last_status(miss))
    assert miss.parse().output_text.startswith(ANSWER)
    exact = ask(QUESTION)
    assert 'detail="exact"' in last_status(exact)
    assert exact.parse() == miss.parse()
    assert "semantic similarity" in last_status(ask(REWORDED))
    listed = ask([{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}])
    assert listed.parse().output_text == miss.parse().output_text
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        gpt.responses.create(model="demo", input="x", previous_response_id="resp_1")


def test_openai_responses_stream_live_and_replayed(gpt: Any) -> None:
    def stream() -> tuple[str, list[str], Any]:
        with gpt.responses.stream(model="demo", input=QUESTION, temperature=0) as events:
            seen = list(events)
        text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
        kinds = [event.type for event in seen if event.type != "response.output_text.delta"]
        return text, kinds, seen[-1].response  # type: ignore[union-attr]

    live, kinds, whole = stream()
    again, same_kinds, same = stream()
    assert live == again == whole.output_text
    assert live.startswith(ANSWER)
    assert kinds == same_kinds
    assert whole == same


def test_langchain(url: str) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="demo", base_url=f"{url}/v1", api_key="lc", temperature=0, max_retries=0)  # type: ignore[arg-type]
    first = str(model.invoke(QUESTION).content)
    assert first.startswith(ANSWER)
    assert "".join(str(chunk.content) for chunk in model.stream(QUESTION)) == first
    assert model.invoke(QUESTION).content == first
