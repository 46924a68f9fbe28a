"""Answers whose text has other tokens than vLLM generated: the prompt of the next turn gets the generated ones."""

import asyncio
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import transformers

from kvproxy.apis import APIS
from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.demo import model_path
from kvproxy.errors import UpstreamUnreachable
from kvproxy.upstreams.generated_tokens import TokenRestorer
from kvproxy.upstreams.mirror.apply_events import MirrorState
from kvproxy.upstreams.mirror.event_decoder import EventBatch, StoredEvent
from kvproxy.upstreams.mirror.mirror import Mirror

SIZE = 8
WORDS = "cache block prefix engine token queue chain evict hash pool ünïcode 漢字 model".split()


@cache
def demo_tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(model_path())


class Vllm:
    """The routes of vLLM for tokens, and a mirror of its blocks."""

    def __init__(self) -> None:
        self.tokenizer = demo_tokenizer()
        self.mirror = Mirror("tcp://127.0.0.1:1")
        self.pools = MirrorState()
        self.mirror.state = lambda: self.pools  # type: ignore[method-assign]
        self.calls: list[str] = []
        self.url = "http://vllm"
        self.failure: Callable[[], tuple[int, Any]] | None = None
        self.tokens = TokenRestorer(self, self.mirror)  # type: ignore[arg-type]

    async def call_json(self, method: str, path: str, body: Any, headers: Any, seconds: float) -> tuple[int, Any]:
        self.calls.append(path)
        if self.failure is not None:
            return self.failure()
        if path == "/detokenize":
            return 200, {"prompt": self.tokenizer.decode(body["tokens"])}
        if path == "/tokenize":
            return 200, {"tokens": self.tokenizer.encode(body["prompt"], add_special_tokens=False)}
        return 200, {"token_ids": self.render(body["messages"])}

    def render(self, messages: list[Any]) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def store(self, tokens: list[int]) -> None:
        """Publish the blocks of a prompt and its answer. The last token of an answer has no block."""
        tokens = tokens[: (len(tokens) - 1) // SIZE * SIZE]
        event = StoredEvent(list(BlockHasher().hash_blocks(tokens, SIZE)), None, tokens, SIZE)
        self.pools.apply(EventBatch(0.0, [event], None))

    def ask(self, messages: list[Any], api: Any = "chat", **more: Any) -> list[int] | None:
        """The restored tokens of a request; None if it is unchanged."""
        body = {"model": "m", "messages": messages} | more
        sent = ApiRequest(APIS[api], body, dumps(body), {}, "public", "1")
        found = asyncio.run(self.tokens.restore(sent))
        if found is sent:
            return None
        ids: list[int] = found.body["kv_transfer_params"]["prompt_token_ids"]  # type: ignore[index,call-overload,assignment]
        return ids

    def spell(self, draw: random.Random, text: str) -> list[int]:
        """Tokens of a text as a model may generate them: of its pieces."""
        places = sorted(draw.sample(range(1, len(text)), min(6, len(text) - 1)))
        pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
        return [token for piece in pieces for token in self.tokenizer.encode(piece, add_special_tokens=False)]


@pytest.mark.parametrize("seed", range(2))
def test_each_turn_continues_the_generated_tokens(seed: int) -> None:
    vllm, draw = Vllm(), random.Random(seed)
    messages: list[Any] = []
    prompt: list[int] = []
    restored = 0
    for _ in range(5):
        messages.append({"role": "user", "content": " ".join(draw.choices(WORDS, k=draw.randrange(3, 20)))})
        plain, found = vllm.render(messages), vllm.ask(messages)
        tokens = found or plain
        cached = max(0, len(prompt) - 1) // SIZE * SIZE
        assert tokens[:cached] == prompt[:cached]
        assert vllm.tokenizer.decode(tokens) == vllm.tokenizer.decode(plain)
        restored += found is not None
        answer = " ".join(draw.choices(WORDS, k=draw.randrange(3, 20)))
        messages.append({"role": "assistant", "content": answer})
        prompt = [*tokens, *vllm.spell(draw, answer)]
        vllm.store(prompt)
    assert restored == 4


def test_known_prefixes_are_not_compared_again() -> None:
    vllm, draw = Vllm(), random.Random(0)
    messages = [{"role": "user", "content": "block " * 9}]
    vllm.store([*vllm.render(messages), *vllm.spell(draw, "cache engine queue " * 9)])
    messages += [{"role": "assistant", "content": "cache engine queue " * 9}, {"role": "user", "content": "pool " * 20}]
    first = vllm.ask(messages)
    assert first is not None
    vllm.store([*first, *vllm.tokenizer.encode("ok")])
    vllm.calls.clear()
    messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    again = vllm.ask(messages)
    assert again is not None
    assert again[: len(first)] == first
    assert vllm.calls == ["/v1/chat/completions/render"]


@pytest.mark.parametrize(
    ("answer", "more"),
    [
        # The text of the tokens: nothing differs.
        ("cache engine queue " * 9, {}),
        ("Another answer. " * 9, {"spelled": True}),
        ("cache engine queue " * 9, {"spelled": True, "kv_transfer_params": {"do_remote_prefill": True}}),
        ("cache engine queue " * 9, {"spelled": True, "api": "completions"}),
    ],
)
def test_other_requests_stay(answer: str, more: dict[str, Any]) -> None:
    vllm = Vllm()
    messages = [{"role": "user", "content": "block " * 9}]
    text, draw = "cache engine queue " * 9, random.Random(0)
    generated = vllm.spell(draw, text) if more.pop("spelled", False) else vllm.tokenizer.encode(text)
    vllm.store([*vllm.render(messages), *generated])
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "pool"}]
    assert vllm.ask(messages, **more) is None


@pytest.mark.parametrize("status", [403, 404, 500, None])
def test_a_server_without_the_route_is_not_asked_again(status: int | None) -> None:
    vllm = Vllm()

    def fail() -> tuple[int, Any]:
        if status is None:
            raise UpstreamUnreachable("no")
        return status, None

    vllm.failure = fail
    assert [vllm.ask([{"role": "user", "content": "hi"}]) for _ in range(3)] == [None] * 3
    assert len(vllm.calls) == 1
