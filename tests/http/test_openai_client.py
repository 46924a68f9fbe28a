"""The real `openai` client against a running proxy with the demo model."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvproxy.http.services import Services
from tests.polling import until_async
from tests.servers import until_stored
from tests.statuses import makes_entry

Demo = tuple[str, Services]
LONG = "You are the support agent of a company. " * 40


@pytest.fixture(scope="module", autouse=True)
def load_openai() -> None:
    """Import the package for these tests only: it takes a second, and every worker imports all files."""
    global openai
    import openai


@pytest.fixture(scope="module")
def client(demo: Demo) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{demo[0]}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(front: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{front}/v1", api_key=request.node.name, max_retries=0) as client:
        yield client


def ask(client: Any, question: str, **options: object):  # type: ignore[no-untyped-def]
    messages = [{"role": "user", "content": question}]
    return client.chat.completions.with_raw_response.create(model="demo", messages=messages, **options)  # type: ignore[call-overload]


def test_miss_exact_semantic_and_prefix(client: Any) -> None:
    miss = ask(client, "What is a block?")
    assert makes_entry(miss.headers["cache-status"])
    answer = miss.parse().choices[0].message.content
    assert answer.startswith("A block is a fixed number of tokens")
    exact = ask(client, "What is a block?")
    assert 'detail="exact"' in exact.headers["cache-status"]
    assert exact.parse() == miss.parse()
    reworded = ask(client, "Can you tell me what a block is?")
    assert "semantic similarity=0.9" in reworded.headers["cache-status"]
    assert reworded.parse().choices[0].message.content == answer
    before = [{"role": "system", "content": LONG}]
    first, second = (
        client.chat.completions.create(
            model="demo",
            temperature=0,
            messages=[*before, {"role": "user", "content": question}],  # type: ignore[list-item]
        )
        for question in ("What is TTFT?", "What is LRU?")
    )
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 0  # type: ignore[union-attr]
    assert second.usage.prompt_tokens_details.cached_tokens > 100  # type: ignore[union-attr]
    assert "least recently used" in (second.choices[0].message.content or "")


def test_streams_carry_the_same_answer_live_and_replayed(client: Any) -> None:
    def stream(**options: object) -> tuple[str, list[object], object]:
        chunks = list(
            client.chat.completions.create(
                model="demo",
                temperature=0,
                messages=[{"role": "user", "content": "What is eviction?"}],
                stream=True,
                **options,  # type: ignore[call-overload]
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        return text, reasons, chunks[-1].usage

    live, live_reasons, usage = stream(stream_options={"include_usage": True})
    again, again_reasons, same = stream(stream_options={"include_usage": True})
    bare, _, none = stream()
    assert live == again == bare
    assert live.startswith("Eviction gives")
    assert live_reasons[-1] == again_reasons[-1] == "stop"
    assert usage == same
    assert none is None
    whole = client.chat.completions.create(
        model="demo", temperature=0, messages=[{"role": "user", "content": "What is eviction?"}]
    )
    assert whole.choices[0].message.content == live
    assert whole.usage == usage


def test_completions_logprobs_n_and_stop(client: Any) -> None:
    raw = "<|user|>What is LRU?<|end|><|assistant|>"
    text = client.completions.create(model="demo", prompt=raw, max_tokens=40, temperature=0).choices[0].text
    assert text.startswith("LRU means least recently used")
    cut = client.completions.create(model="demo", prompt=raw, max_tokens=40, temperature=0, stop=" recently")
    assert cut.choices[0].text == "LRU means least"
    short = client.completions.create(model="demo", prompt=raw, max_tokens=3, temperature=0, logprobs=2)
    assert short.choices[0].finish_reason == "length"
    assert short.choices[0].logprobs is not None
    assert len(short.choices[0].logprobs.token_logprobs or []) == 3
    several = client.chat.completions.create(
        model="demo", n=3, logprobs=True, top_logprobs=2, messages=[{"role": "user", "content": "What is LRU?"}]
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    first = several.choices[0].logprobs
    assert first is not None
    assert len((first.content or [])[0].top_logprobs) == 2


async def test_a_client_that_leaves_frees_its_blocks_and_stores_nothing(demo: Demo) -> None:
    url, services = demo
    until_stored(services)
    entries = services.cache.store.stats().entries
    assert services.built.worker is not None
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="c", max_retries=0) as client:
        stream = await client.completions.create(
            model="demo", prompt="leave me", max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
        )
        await anext(aiter(stream))
        assert httpx.get(f"{url}/admin/blocks/stats").json()["used"] > 0
        await stream.close()
        with pytest.raises(openai.APITimeoutError):
            await client.completions.create(
                model="demo", prompt="leave me too", max_tokens=3000, timeout=0.3, extra_body={"ignore_eos": True}
            )
    await until_async(lambda: httpx.get(f"{url}/admin/blocks/stats").json()["used"] == 0)
    await until_async(lambda: not services.path.requests_in_flight)
    until_stored(services)
    assert services.cache.store.stats().entries == entries


async def test_equal_request_ids_do_not_meet_in_the_engine(demo: Demo) -> None:
    async with httpx.AsyncClient(base_url=demo[0], timeout=300) as client:

        async def one(question: str) -> str:
            body = {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": question}]}
            answer = await client.post("/v1/chat/completions", json=body, headers={"x-request-id": "same"})
            assert answer.headers["x-request-id"] == "same"
            return str(answer.json()["choices"][0]["message"]["content"])

        first, second = await asyncio.gather(one("What is prefill?"), one("What is decode?"))
    assert first.startswith("Prefill computes")
    assert second.startswith("Decode produces")


@pytest.mark.parametrize(
    ("headers", "options", "status"),
    [({"cache-control": "only-if-cached"}, {}, 504), ({}, {"model": "missing"}, 404)],
)
def test_the_client_does_not_retry_a_refusal_that_a_retry_cannot_change(
    demo: Demo, headers: dict[str, str], options: dict[str, Any], status: int
) -> None:
    sent: list[httpx.Request] = []
    with httpx.Client(event_hooks={"request": [sent.append]}) as sender:
        retrying = openai.OpenAI(base_url=f"{demo[0]}/v1", api_key="k", http_client=sender, max_retries=2)
        with pytest.raises(openai.APIStatusError) as refused:
            retrying.chat.completions.create(
                **{"model": "demo", "messages": [{"role": "user", "content": "Is this stored?"}], **options},
                extra_headers=headers,
            )
    assert (refused.value.status_code, len(sent)) == (status, 1)
    assert refused.value.response.headers["x-should-retry"] == "false"


def last_status(response: Any) -> str:
    """Return the status of the nearest proxy, which is the last one in the header."""
    return str(response.headers["cache-status"]).rsplit(", ", 1)[-1]


def test_openai_responses(gpt: Any) -> None:
    def ask(question: Any) -> Any:
        return gpt.responses.with_raw_response.create(
            model="demo", instructions="You know kvproxy.", input=question, temperature=0, max_output_tokens=80
        )

    miss = ask("What is a block?")
    assert makes_entry(last_status(miss))
    assert miss.parse().output_text.startswith("A block is a fixed number of tokens")
    exact = ask("What is a block?")
    assert 'detail="exact"' in last_status(exact)
    assert exact.parse() == miss.parse()
    assert "semantic similarity" in last_status(ask("Can you tell me what a block is?"))
    listed = ask([{"role": "user", "content": [{"type": "input_text", "text": "What is a block?"}]}])
    assert listed.parse().output_text == miss.parse().output_text
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        gpt.responses.create(model="demo", input="x", previous_response_id="resp_1")


def test_openai_responses_stream_live_and_replayed(gpt: Any) -> None:
    def stream() -> tuple[str, list[str], Any]:
        with gpt.responses.stream(model="demo", input="What is a block?", temperature=0) as events:
            seen = list(events)
        text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
        kinds = [event.type for event in seen if event.type != "response.output_text.delta"]
        return text, kinds, seen[-1].response  # type: ignore[union-attr]

    live, kinds, whole = stream()
    again, same_kinds, same = stream()
    assert live == again == whole.output_text
    assert live.startswith("A block is a fixed number of tokens")
    assert kinds == same_kinds
    assert whole == same


def test_langchain(front: str) -> None:
    from langchain_openai import ChatOpenAI

    with httpx.Client() as sender:
        model = ChatOpenAI(
            model="demo",
            base_url=f"{front}/v1",
            api_key="lc",  # type: ignore[arg-type]
            temperature=0,
            max_retries=0,
            http_client=sender,
        )
        first = str(model.invoke("What is a block?").content)
        assert first.startswith("A block is a fixed number of tokens")
        assert "".join(str(chunk.content) for chunk in model.stream("What is a block?")) == first
        assert model.invoke("What is a block?").content == first
