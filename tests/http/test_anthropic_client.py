"""The real `anthropic` client against a running proxy with the demo model, and in front of an upstream."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvproxy.http.services import Services
from tests.http.test_openai_client import last_status
from tests.statuses import makes_entry

Demo = tuple[str, Services]
HELLO: list[Any] = [{"role": "user", "content": "What is a block?"}]
TOOL: Any = {"name": "look", "description": "Look up a term.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module", autouse=True)
def load_anthropic() -> None:
    """Import the package for these tests only: it takes seconds, and every worker imports all files."""
    global anthropic
    import anthropic


@pytest.fixture(scope="module")
def client(demo: Demo) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=demo[0], api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(front: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=front, api_key=request.node.name, max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    "more", [{}, {"system": "Be brief. " * 40}, {"system": [{"type": "text", "text": "Be kind."}]}]
)
def test_it_counts_the_tokens_that_a_generation_reports(client: Any, more: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": HELLO, **more}
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=5).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert client.messages.count_tokens(**asked).input_tokens == counted


def test_a_stop_sequence_is_reported_computed_streamed_and_cached(client: Any) -> None:
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 60, "messages": HELLO, "extra_body": {"temperature": 0}}
    words = client.messages.create(**asked).content[0].text.split()
    asked["stop_sequences"] = ["never in it", words[2]]
    for _ in range(2):
        message = client.messages.create(**asked)
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", words[2])
    with client.messages.stream(**asked | {"max_tokens": 61}) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", words[2])
    assert final.content[0].text == message.content[0].text


def test_a_count_that_fails_has_the_error_of_the_generation(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="'missing' is not served here"):
        client.messages.count_tokens(model="missing", messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="messages is required"):
        client.messages.count_tokens(model="demo", messages=[])
    # The demo model has no tools: it ignores them, and refuses required calls.
    assert client.messages.count_tokens(model="demo", messages=HELLO, tools=[TOOL]).input_tokens
    with pytest.raises(anthropic.BadRequestError, match="kvproxy cannot parse the tool calls"):
        client.messages.create(
            model="demo", max_tokens=9, messages=HELLO, tools=[TOOL], tool_choice={"type": "tool", "name": TOOL["name"]}
        )


def test_errors_of_all_routes_below_messages_have_the_format_of_anthropic(demo: Demo) -> None:
    answers = [
        httpx.post(f"{demo[0]}/v1/messages", json={}),
        httpx.post(f"{demo[0]}/v1/messages/count_tokens", content=b"{nonsense"),
        httpx.post(f"{demo[0]}/v1/messages/batches", json={}),
        httpx.get(f"{demo[0]}/v1/messages/batches"),
        httpx.post(f"{demo[0]}//v1/messages", json={}),
        httpx.post(f"{demo[0]}/v1/messages", json={}, headers={"expect": "nothing"}),
        httpx.post(f"{demo[0]}/v1/messages", json={}, headers={"origin": "https://example.org"}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 404, 404, 404, 417, 403]
    kinds = [(answer.json()["type"], answer.json()["error"]["type"]) for answer in answers]
    assert kinds == [
        ("error", kind)
        for kind in [*["invalid_request_error"] * 2, *["not_found_error"] * 3, "api_error", "permission_error"]
    ]
    assert "openapi.json" in answers[2].json()["error"]["message"]
    other = httpx.get(f"{demo[0]}/v1/messages_of_another_api").json()
    assert other["error"]["code"] == "not_found"


def test_anthropic_messages(claude: Any) -> None:
    def ask(question: str) -> Any:
        return claude.messages.with_raw_response.create(
            model="demo",
            max_tokens=80,
            extra_body={"temperature": 0},
            system="You know kvproxy.",
            messages=[{"role": "user", "content": question}],
        )

    miss = ask(HELLO[0]["content"])
    assert makes_entry(last_status(miss))
    message = miss.parse()
    assert message.content[0].text.startswith("A block is a fixed number of tokens")
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 3
    exact = ask(HELLO[0]["content"])
    assert 'detail="exact"' in last_status(exact)
    assert exact.parse() == message
    similar = ask("Can you tell me what a block is?")
    assert "semantic similarity" in last_status(similar)
    assert similar.parse().content == message.content


def test_anthropic_streams_live_and_replayed(claude: Any) -> None:
    def stream() -> tuple[str, Any]:
        with claude.messages.stream(
            model="demo", max_tokens=80, extra_body={"temperature": 0}, messages=HELLO
        ) as events:
            text = "".join(events.text_stream)
            return text, events.get_final_message()

    live, whole = stream()
    again, same = stream()
    assert live == again == whole.content[0].text
    assert live.startswith("A block is a fixed number of tokens")
    assert whole == same
    got = claude.messages.create(model="demo", max_tokens=80, extra_body={"temperature": 0}, messages=HELLO)
    assert got.content[0].text == live
