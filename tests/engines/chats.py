"""Random chats with shared beginnings, and a proxy that tells before each of them what will be reused."""

import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import zmq

from tests.engines.running import Vllm

_WORDS = "cache block prefix engine token queue chain evict hash pool model prompt answer stream window group".split()
Chat = list[dict[str, str]]


class Chats:
    """Conversations that begin alike, go on, and are begun anew.

    Args:
        seed: the same one gives the same chats.
        longest: words of a chat, above which it is given up.
    """

    def __init__(self, seed: int, longest: int) -> None:
        self._chance = random.Random(seed)
        self._longest = longest
        self._systems = [self._text(self._chance.randrange(20, longest // 3)) for _ in range(6)]
        self._going: list[Chat] = []

    def _text(self, words: int) -> str:
        return " ".join(self._chance.choice(_WORDS) for _ in range(words))

    def next(self) -> Chat:
        """A new chat under one of the system prompts, the next turn of an old one, or one that leaves an old one half-way."""
        roll = self._chance.random()
        if self._going and roll < 0.5:
            chat = self._going.pop(self._chance.randrange(len(self._going)))
            chat = [*chat, {"role": "assistant", "content": self._text(self._chance.randrange(1, 30))}]
        elif self._going and roll < 0.6:
            chat = self._chance.choice(self._going)
            last = chat[-1]["content"]
            return [*chat[:-1], {**chat[-1], "content": last[: len(last) // 2]}]
        else:
            chat = [{"role": "system", "content": self._chance.choice(self._systems)}]
        chat = [*chat, {"role": "user", "content": self._text(self._chance.randrange(1, 60))}]
        if sum(len(message["content"].split()) for message in chat) < self._longest:
            self._going.append(chat)
            self._going = self._going[-12:]
        return chat


class Published:
    """What an engine has published of its blocks, asked for at its replay port.

    vLLM hands a step's events to its publisher before it hands out the step's answers. The publisher replies to one
    question, then publishes one batch, and so on. So when two questions in a row get the same reply after an answer,
    nothing waits to be published.

    Args:
        replay: the port.
    """

    def __init__(self, replay: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(replay)

    def since(self, number: int) -> list[int]:
        """Numbers of the batches from one on."""
        self._socket.send_multipart([b"", number.to_bytes(8, "big")])
        found = []
        while True:
            assert self._socket.poll(60_000), "the engine answers no question about its batches"
            _, _, told, *_ = self._socket.recv_multipart()
            if told == b"\xff" * 8:
                return found
            found.append(int.from_bytes(told, "big"))

    def close(self) -> None:
        """End its connection."""
        self._socket.close(linger=0)
        self._context.term()


@dataclass(slots=True)
class Tally:
    """Predictions beside reports."""

    chats: int = 0
    reused: int = 0
    prompt_tokens: int = 0
    wrong: list[tuple[int, int, int]] = field(default_factory=list)
    """Number of the chat, what was predicted, and what was reported."""

    def add(self, prompt_tokens: int, predicted: int, reported: int) -> None:
        """Take one chat; say now and then how it goes."""
        if predicted != reported:
            self.wrong.append((self.chats, predicted, reported))
        self.chats += 1
        self.reused += reported
        self.prompt_tokens += prompt_tokens
        if self.chats % 50 == 0:
            print(self, flush=True)

    def __str__(self) -> str:
        share = self.reused / max(1, self.prompt_tokens)
        return (
            f"{self.chats - len(self.wrong)} of {self.chats} predictions right, {share:.0%} of the prompt tokens reused"
        )


class Teller:
    """Asks a proxy before each chat what will be reused, then sends it.

    Args:
        url: of the proxy.
        model: the model's name.
        engines: those that it is in front of.
    """

    def __init__(self, url: str, model: str, *engines: Vllm) -> None:
        self.url = url
        self._model = model
        self._client = httpx.Client(base_url=url, timeout=300)
        self._published = {engine.url: Published(engine.replay) for engine in engines}

    def close(self) -> None:
        """End its connections."""
        self._client.close()
        for each in self._published.values():
            each.close()

    def explain(self, chat: Chat) -> dict[str, Any]:
        """What the proxy says of a chat."""
        told: dict[str, Any] = self._client.post("/admin/explain", json=self._body(chat)).raise_for_status().json()
        prefix: dict[str, Any] = told["prefix"]
        return prefix

    def ask(self, chat: Chat, **options: Any) -> dict[str, Any]:
        """The usage that the engine reports."""
        body = self._body(chat) | {"max_tokens": 1 + len(chat) % 7, "temperature": 0, "ignore_eos": True} | options
        answer = self._client.post("/v1/chat/completions", json=body).raise_for_status()
        usage: dict[str, Any] = answer.json()["usage"]
        return usage

    def _body(self, chat: Chat) -> dict[str, Any]:
        return {"model": self._model, "messages": chat}

    def upstreams(self) -> list[dict[str, Any]]:
        """What the proxy knows of its upstreams."""
        found: list[dict[str, Any]] = self._client.get("/admin/upstreams").raise_for_status().json()
        return found

    def settled(self) -> None:
        """Wait until every mirror knows all that its engine did for the answers so far."""
        end = time.monotonic() + 120
        while not all(map(self._knows_all, self.upstreams())):
            assert time.monotonic() < end, "the mirrors do not catch up"
            time.sleep(0.01)

    def _knows_all(self, upstream: dict[str, Any]) -> bool:
        if not upstream["complete"]:
            return False
        (stream,) = upstream["streams"]
        published, last = self._published[upstream["url"]], stream["next"] - 1
        # What is still on its way to the publisher is published between two questions.
        if all(published.since(max(0, last)) == ([last] if last >= 0 else []) for _ in range(2)):
            return True
        # Since its start it has published nothing, and the mirror's number is that of the run before.
        return upstream["cached_blocks"] == 0 and published.since(0) == []

    def run(self, chats: Chats, count: int, tally: Tally) -> None:
        """Send so many chats one after another, and take down what was predicted and what was reported."""
        for _ in range(count):
            self.settled()
            chat = chats.next()
            predicted = self.explain(chat)["matched_tokens"]
            usage = self.ask(chat)
            tally.add(usage["prompt_tokens"], predicted, usage["prompt_tokens_details"]["cached_tokens"])
