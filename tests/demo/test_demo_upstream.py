"""The demonstration model without torch, and the server of `kvproxy serve --demo`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import torch
from tokenizers import Tokenizer

from kvproxy.demo import model_path
from kvproxy.demo.numpy_model import NumpyModel
from kvproxy.demo.upstream import run_demo_upstream
from kvproxy.operations.client import configured_url
from tests.polling import until
from tests.ports import free_port
from tests.processes import serve

SYSTEM = (
    "You answer questions about the pool of blocks, in short sentences and in plain English, and nothing else. " * 6
)


def test_it_generates_the_tokens_of_transformers(loaded: tuple[Any, Any]) -> None:
    reference, _ = loaded
    model, tokenizer = NumpyModel(model_path()), Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    for system in ("", f"<|system|>{SYSTEM}<|end|>"):
        for number, question in enumerate(("What is a block?", "What is the free queue?", "Tell me a joke!")):
            prompt = tokenizer.encode(f"{system}<|user|>{question}<|end|><|assistant|>", add_special_tokens=False).ids
            generation = model.generate(prompt, 24)
            with torch.no_grad():
                expected = reference.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)
            answer = [token for token in expected[0, len(prompt) :].tolist() if token != model.end_token]
            assert list(generation.tokens) == answer
            # The system prompt is computed once.
            assert (generation.reused_tokens > 100) == bool(system and number)


def test_clients_of_openai_read_its_answers() -> None:
    with run_demo_upstream() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "What is a block?"}]
        assert [model.id for model in client.models.list()] == ["demo"]
        whole = client.chat.completions.create(model="demo", messages=messages)
        text = whole.choices[0].message.content or ""
        assert text.startswith("A block is a fixed number of tokens")
        assert whole.choices[0].finish_reason == "stop"
        capitals: Any = [{"role": "user", "content": "WHAT IS A BLOCK?"}]
        assert client.chat.completions.create(model="demo", messages=capitals).choices[0].message.content == text
        options: Any = {"include_usage": True}
        chunks = [*client.chat.completions.create(model="demo", messages=messages, stream=True, stream_options=options)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
        usage = chunks[-1].usage
        assert usage is not None
        assert whole.usage is not None
        assert usage.completion_tokens == whole.usage.completion_tokens
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
        short = client.chat.completions.create(model="demo", messages=messages, max_tokens=3)
        assert short.choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError, match="does not support n: send"):
            client.chat.completions.create(model="demo", messages=messages, n=2)
        assert httpx.post(f"{url}/v1/chat/completions", content=b"[]").status_code == 400
        odd = httpx.post(
            f"{url}/v1/chat/completions", json={"model": "demo", "messages": [{"role": "x", "content": ""}]}
        )
        assert (odd.status_code, "has no role 'x'" in odd.json()["error"]["message"]) == (400, True)
        response = client.responses.create(model="demo", input="What is a block?")
        assert response.output_text == text


def test_clients_of_anthropic_read_its_answers() -> None:
    with run_demo_upstream() as url, anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        asked: Any = {
            "model": "demo",
            "max_tokens": 100,
            "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": "What is a block?"}],
        }
        whole = client.messages.create(**asked)
        (block,) = whole.content
        assert block.type == "text"
        assert block.text.startswith("A block is a fixed number of tokens")
        with client.messages.stream(**asked) as stream:
            assert stream.get_final_text() == block.text
            usage = stream.get_final_message().usage
        assert (usage.input_tokens, usage.output_tokens) == (1, whole.usage.output_tokens)
        assert client.messages.create(**asked | {"max_tokens": 3}).stop_reason == "max_tokens"
        counted = client.messages.count_tokens(**{name: asked[name] for name in ("model", "system", "messages")})
        assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        with pytest.raises(
            anthropic.NotFoundError, match="answers /v1/chat/completions, /v1/messages, /v1/responses only"
        ):
            client.messages.batches.list()


COUNT: Any = {
    "type": "object",
    "properties": {"folder": {"type": "string"}, "depth": {"type": "integer", "minimum": 1}},
    "required": ["folder", "depth"],
}
ARGUMENTS = {"folder": "demo", "depth": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_tool_is_called_once_by_a_loop_of_openai(stream: bool) -> None:
    """Without a required tool, and after its result, the answer is a text."""
    tool: Any = {"type": "function", "function": {"name": "count", "parameters": COUNT}}
    with run_demo_upstream() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "What is a block?"}]

        def answer(choice: Any) -> Any:
            asked: Any = {"model": "demo", "messages": messages, "tools": [tool], "tool_choice": choice}
            if not stream:
                return client.chat.completions.create(**asked).choices[0]
            with client.chat.completions.stream(**asked) as events:
                return events.get_final_completion().choices[0]

        assert answer("auto").message.content.startswith("A block is a fixed number of tokens")
        for choice in ("required", {"type": "function", "function": {"name": "count"}}):
            called = answer(choice)
            (call,) = called.message.tool_calls
            assert (called.finish_reason, call.function.name) == ("tool_calls", "count")
            assert json.loads(call.function.arguments) == ARGUMENTS
        messages += [
            called.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "3"},
        ]
        assert answer("required").finish_reason == "stop"
        item: Any = {"type": "function", "name": "count", "parameters": COUNT, "strict": False}
        response = client.responses.create(model="demo", input="Hi", tools=[item], tool_choice="required", include=[])
        assert [json.loads(each.arguments) for each in response.output if each.type == "function_call"] == [ARGUMENTS]


def test_a_required_tool_is_called_once_by_a_loop_of_anthropic() -> None:
    with run_demo_upstream() as url, anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "What is a block?"}]
        asked: Any = {"model": "demo", "max_tokens": 100, "tools": [{"name": "count", "input_schema": COUNT}]}
        asked |= {"tool_choice": {"type": "any"}, "messages": messages}
        with client.messages.stream(**asked) as stream:
            called = stream.get_final_message()
        (block,) = called.content
        assert block.type == "tool_use"
        assert (called.stop_reason, block.input) == ("tool_use", ARGUMENTS)
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "3"}
        messages += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
        assert client.messages.create(**asked).content[0].type == "text"


def test_serve_demo_has_a_hit_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    port = free_port()
    # An import of torch or httpx fails.
    command = [
        sys.executable,
        "-c",
        "import sys; sys.modules['torch'] = sys.modules['httpx'] = None; from kvproxy.__main__ import main; main()",
        *("serve", "--demo", "--port", str(port)),
    ]
    body = {"model": "demo", "messages": [{"role": "user", "content": "What is a block?"}]}
    with serve(command, port, tmp_path / "log") as running:
        answers = [httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=300) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert ["hit" in answer.headers["cache-status"] for answer in answers] == [False, True]
        # The list price of another name does not apply.
        paid = httpx.post(f"{running.url}/v1/chat/completions", json=body | {"model": "gpt-4o"}, timeout=300)
        assert "hit" in paid.headers["cache-status"]
        assert [row["id"] for row in httpx.get(f"{running.url}/v1/models").json()["data"]] == ["demo"]
        until(lambda: len(httpx.get(f"{running.url}/admin/log").json()) == 3)
        assert {row["model"] for row in httpx.get(f"{running.url}/admin/log").json()} == {"demo"}
        messages = {"max_tokens": 100, "stream": True}
        answers = [httpx.post(f"{running.url}/v1/messages", json=body | messages, timeout=300) for _ in range(2)]
        assert ["hit" in answer.headers["cache-status"] for answer in answers] == [False, True]
        assert all("event: message_stop" in answer.text for answer in answers)
        other = {"model": "demo", "messages": [{"role": "user", "content": "What is a block of the pool?"}]}
        explained = httpx.post(f"{running.url}/admin/explain", params={"api": "chat"}, json=other, timeout=60).json()
        usage = httpx.post(f"{running.url}/v1/chat/completions", json=other, timeout=300).json()["usage"]
        expected = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        assert (explained["prefix"]["prompt_tokens"], explained["prefix"]["matched_tokens"]) == expected
        assert (explained["layer"], expected[1] > 0) == ("prefix", True)
        for api, body in (
            ("messages", messages | other),
            ("responses", {"model": "demo", "input": "What is a block?"}),
        ):
            explained = httpx.post(f"{running.url}/admin/explain", params={"api": api}, json=body, timeout=60).json()
            assert explained["prefix"]["matched_tokens"] > 0, (api, explained)
        called = other | {"tools": [{"type": "function", "function": {"name": "add"}}], "tool_choice": "required"}
        explained = httpx.post(f"{running.url}/admin/explain", params={"api": "chat"}, json=called, timeout=60).json()
        assert (explained["layer"], explained["prefix"]["matched_tokens"]) == ("none", 0)
        unknown = httpx.post(f"{running.url}/v1/moderations", json={"input": "x"}).json()
        assert "serve another model with --upstream" in unknown["error"]["message"]
        (row,) = httpx.get(f"{running.url}/admin/upstreams").json()
        assert row["state"] == "up"
        # Commands find it, and the next proxy does not count its responses.
        assert configured_url() == running.url
        assert (tmp_path / "kvproxy-demo/responses.db").is_file()
        assert not (tmp_path / "kvproxy").exists()
    assert "with the demonstration model" in (tmp_path / "log").read_text()


def test_serve_demo_has_its_own_model() -> None:
    command = [sys.executable, "-m", "kvproxy", "serve", "--demo", "--model", "x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "leave out --model" in " ".join(done.stderr.split())
