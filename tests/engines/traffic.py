"""Random traffic: continued responses, streams, raw prompts, salts, and unusual texts."""

import json
import random
from dataclasses import dataclass
from typing import Any

import httpx

_WORDS = (
    "block cache Grüße 漢字 😀 tokens\n\nwindow   spaces \t<tag> {json} the of and answer \u200bjoin Ωmega naïve".split(
        " "
    )
)
_ANSWERS = (1, 2, 5, 33, 70)


@dataclass(frozen=True, slots=True)
class Reply:
    usage: dict[str, Any]
    text: str


class Traffic:
    def __init__(self, seed: int, max_characters: int) -> None:
        self.chance = random.Random(seed)
        self._max_characters = max_characters
        self._beginnings = [self._text(self.chance.randrange(10, 60)) for _ in range(4)]
        self._chats: list[dict[str, Any]] = []
        self._texts = list(self._beginnings)

    def _text(self, words: int) -> str:
        return " ".join(self.chance.choice(_WORDS) for _ in range(words))

    def next(self) -> tuple[str, dict[str, Any]]:
        roll = self.chance.random()
        options: dict[str, Any] = {"max_tokens": self.chance.choice(_ANSWERS), "temperature": 0, "ignore_eos": True}
        if self.chance.random() < 0.4:
            options |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.chance.random() < 0.15:
            options["cache_salt"] = self.chance.choice(["one", "two"])
        if roll < 0.2:
            earlier = self.chance.choice(self._texts)
            text = earlier[: self.chance.randrange(1, len(earlier) + 1)] + self._text(self.chance.randrange(1, 40))
            self._texts = [*self._texts[-12:], text]
            return "completions", {"prompt": text[: self._max_characters], **options}
        if self._chats and roll < 0.75:
            body = self.chance.choice(self._chats)
        else:
            body = {"messages": [{"role": "user", "content": self.chance.choice(self._beginnings)}]}
            if self.chance.random() < 0.2:
                options["add_generation_prompt"] = False
        return "chat", body | options

    def add_reply(self, api: str, body: dict[str, Any], text: str) -> None:
        if api == "completions":
            self._texts.append(body["prompt"] + text)
            return
        turn = [
            {"role": "assistant", "content": text},
            {"role": "user", "content": self._text(self.chance.randrange(1, 40))},
        ]
        messages = [*body["messages"], *turn]
        if sum(len(message["content"]) for message in messages) < self._max_characters:
            self._chats = [*self._chats[-10:], {"messages": messages}]


PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def send(client: httpx.Client, api: str, body: dict[str, Any]) -> Reply:
    if not body.get("stream"):
        answer = client.post(PATHS[api], json=body).raise_for_status().json()
        (choice,) = answer["choices"]
        return Reply(answer["usage"], choice["text"] if api == "completions" else choice["message"]["content"] or "")
    usage: dict[str, Any] = {}
    text = ""
    with client.stream("POST", PATHS[api], json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += (choice["text"] if api == "completions" else choice["delta"].get("content")) or ""
    return Reply(usage, text)
