"""Random traffic of many kinds: answers fed back, streams, raw prompts, salts, odd texts, resets at the engine itself."""

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
class Said:
    """What an engine said."""

    usage: dict[str, Any]
    text: str


class Traffic:
    """Requests of many kinds, of which some go on from what was answered before.

    Args:
        seed: the same one gives the same choices.
        longest: characters of a conversation, above which it is given up.
    """

    def __init__(self, seed: int, longest: int) -> None:
        self.chance = random.Random(seed)
        self._longest = longest
        self._beginnings = [self._text(self.chance.randrange(10, 60)) for _ in range(4)]
        self._chats: list[dict[str, Any]] = []
        self._texts = list(self._beginnings)

    def _text(self, words: int) -> str:
        return " ".join(self.chance.choice(_WORDS) for _ in range(words))

    def next(self) -> tuple[str, dict[str, Any]]:
        """The name of an API of kvproxy's, and a request to it."""
        roll = self.chance.random()
        options: dict[str, Any] = {"max_tokens": self.chance.choice(_ANSWERS), "temperature": 0, "ignore_eos": True}
        if self.chance.random() < 0.4:
            options |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.chance.random() < 0.15:
            options["cache_salt"] = self.chance.choice(["one", "two"])
        if roll < 0.2:
            begun = self.chance.choice(self._texts)
            text = begun[: self.chance.randrange(1, len(begun) + 1)] + self._text(self.chance.randrange(1, 40))
            self._texts = [*self._texts[-12:], text]
            return "completions", {"prompt": text[: self._longest], **options}
        if self._chats and roll < 0.75:
            body = self.chance.choice(self._chats)
        else:
            body = {"messages": [{"role": "user", "content": self.chance.choice(self._beginnings)}]}
            if self.chance.random() < 0.2:
                options["add_generation_prompt"] = False
        return "chat", body | options

    def answered(self, api: str, body: dict[str, Any], text: str) -> None:
        """Go on from an answer: with what the user says next, if there is room."""
        if api == "completions":
            self._texts.append(body["prompt"] + text)
            return
        turn = [
            {"role": "assistant", "content": text},
            {"role": "user", "content": self._text(self.chance.randrange(1, 40))},
        ]
        messages = [*body["messages"], *turn]
        if sum(len(message["content"]) for message in messages) < self._longest:
            self._chats = [*self._chats[-10:], {"messages": messages}]


PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def send(client: httpx.Client, api: str, body: dict[str, Any]) -> Said:
    """Send a request, read the whole answer, as a stream or not."""
    if not body.get("stream"):
        answer = client.post(PATHS[api], json=body).raise_for_status().json()
        (choice,) = answer["choices"]
        return Said(answer["usage"], choice["text"] if api == "completions" else choice["message"]["content"] or "")
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
    return Said(usage, text)
