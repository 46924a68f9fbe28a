"""Random chats with common prefixes, and a client that compares predicted with reported reuse."""

import random
from dataclasses import dataclass, field
from typing import Any

import httpx
import zmq

from tests.engines.running import Vllm
from tests.polling import until

WORDS = "cache block prefix engine token queue chain evict hash pool model prompt answer stream window group".split()
Chat = list[dict[str, str]]


class Chats:
    def __init__(self, seed: int, max_words: int) -> None:
        self._chance = random.Random(seed)
        self._max_words = max_words
        self._systems = [self._text(self._chance.randrange(20, max_words // 3)) for _ in range(6)]
        self._chats: list[Chat] = []

    def _text(self, words: int) -> str:
        return " ".join(self._chance.choice(WORDS) for _ in range(words))

    def next(self) -> Chat:
        roll = self._chance.random()
        if self._chats and roll < 0.5:
            chat = self._chats.pop(self._chance.randrange(len(self._chats)))
            chat = [*chat, {"role": "assistant", "content": self._text(self._chance.randrange(1, 30))}]
        elif self._chats and roll < 0.6:
            chat = self._chance.choice(self._chats)
            last = chat[-1]["content"]
            return [*chat[:-1], {**chat[-1], "content": last[: len(last) // 2]}]
        else:
            chat = [{"role": "system", "content": self._chance.choice(self._systems)}]
        chat = [*chat, {"role": "user", "content": self._text(self._chance.randrange(1, 60))}]
        if sum(len(message["content"].split()) for message in chat) < self._max_words:
            self._chats.append(chat)
            self._chats = self._chats[-12:]
        return chat


class ReplayClient:
    def __init__(self, replay: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(replay)

    def batches_since(self, number: int) -> list[int]:
        self._socket.send_multipart([b"", number.to_bytes(8, "big")])
        found: list[int] = []
        while True:
            assert self._socket.poll(60_000), "the engine does not reply to a replay request"
            _, _, batch, *_ = self._socket.recv_multipart()
            if batch == b"\xff" * 8:
                return found
            found.append(int.from_bytes(batch, "big"))

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@dataclass(slots=True)
class Tally:
    chats: int = 0
    reused: int = 0
    prompt_tokens: int = 0
    wrong: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, prompt_tokens: int, predicted: int, reported: int) -> None:
        if predicted != reported:
            self.wrong.append((self.chats, predicted, reported))
        self.chats += 1
        self.reused += reported
        self.prompt_tokens += prompt_tokens
        if self.chats % 50 == 0:
            print(self, flush=True)

    def __str__(self) -> str:
        share = self.reused / max(1, self.prompt_tokens)
        right = self.chats - len(self.wrong)
        return f"{right} of {self.chats} predictions right, {share:.0%} of the prompt tokens reused"


class PredictionClient:
    def __init__(self, url: str, model: str, *engines: Vllm) -> None:
        self.url = url
        self._model = model
        self._client = httpx.Client(base_url=url, timeout=300)
        self._replays = {engine.url: ReplayClient(engine.replay) for engine in engines}

    def close(self) -> None:
        self._client.close()
        for each in self._replays.values():
            each.close()

    def explain(self, chat: Chat) -> dict[str, Any]:
        reply = self._client.post("/admin/explain", json=self._body(chat)).raise_for_status()
        return dict(reply.json()["prefix"])

    def ask(self, chat: Chat, **options: Any) -> dict[str, Any]:
        body = self._body(chat) | {"max_tokens": 1 + len(chat) % 7, "temperature": 0, "ignore_eos": True} | options
        return dict(self._client.post("/v1/chat/completions", json=body).raise_for_status().json()["usage"])

    def _body(self, chat: Chat) -> dict[str, Any]:
        return {"model": self._model, "messages": chat}

    def upstreams(self) -> list[dict[str, Any]]:
        return list(self._client.get("/admin/upstreams").raise_for_status().json())

    def wait_for_mirrors(self) -> None:
        until(lambda: all(map(self._is_current, self.upstreams())), 120)

    def _is_current(self, upstream: dict[str, Any]) -> bool:
        if not upstream["complete"]:
            return False
        (stream,) = upstream["streams"]
        replay, last = self._replays[upstream["url"]], stream["next"] - 1
        if all(replay.batches_since(max(0, last)) == ([last] if last >= 0 else []) for _ in range(2)):
            return True
        # A restarted engine has published nothing yet, and the mirror has the number of the earlier run.
        return upstream["cached_blocks"] == 0 and replay.batches_since(0) == []

    def run(self, chats: Chats, count: int, tally: Tally) -> None:
        for _ in range(count):
            self.wait_for_mirrors()
            chat = chats.next()
            predicted = self.explain(chat)["matched_tokens"]
            usage = self.ask(chat)
            tally.add(usage["prompt_tokens"], predicted, usage["prompt_tokens_details"]["cached_tokens"])
