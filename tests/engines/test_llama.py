"""Predictions for a real llama-server equal its reports, and its slots survive a crash."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from kvproxy.settings import load_settings
from tests.engines.conftest import Table
from tests.engines.llama import LlamaServer, llama_server
from tests.polling import until
from tests.servers import run_proxy

_CHATS = 40


class Client:
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=600)

    def ask(self, messages: list[dict[str, str]]) -> tuple[str, int]:
        body = {"model": "gemma", "messages": messages, "max_tokens": 6, "temperature": 0}
        answer = self._client.post("/v1/chat/completions", json=body).raise_for_status().json()
        until(lambda: all(block["state"] != "used" for block in self.get("/admin/blocks")))
        return answer["choices"][0]["message"]["content"], answer["timings"]["cache_n"]

    def explain(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        body = {"model": "gemma", "messages": messages}
        return dict(self._client.post("/admin/explain?api=chat", json=body).raise_for_status().json()["prefix"])

    def get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()

    def status(self) -> dict[str, Any]:
        return dict(self.get("/admin/upstreams")[0])

    def close(self) -> None:
        self._client.close()


@contextmanager
def run_client(server: LlamaServer, data: Path, **slots: Any) -> Iterator[Client]:
    settings = load_settings(
        data=data, upstream=server.url, cache={"enabled": False}, slots=slots, routing={"health_interval": 0.5}
    )
    with run_proxy(settings) as (url, _):
        client = Client(url)
        until(lambda: client.status()["slots"] is not None)
        yield client
        client.close()


def long(topic: str, sentences: int = 12) -> list[dict[str, str]]:
    text = "".join(f"Page {at} of the book of {topic} tells of river {at * 7}. " for at in range(sentences))
    return [{"role": "user", "content": text}]


def test_predictions_equal_reports(engines: Path, tmp_path: Path, table: Table) -> None:
    choose = random.Random(14)
    equal = restored = 0
    with llama_server(engines, tmp_path / "slots") as server, run_client(server, tmp_path, save_after=0.2) as client:
        chats = [long(f"{'the' if number % 2 else 'a'} topic {number}", choose.choice([6, 12])) for number in range(5)]
        for number in range(_CHATS):
            if number in (15, 30):
                server.restart()
                until(lambda: client.status()["error"] is None)
            chat = choose.choice(chats)
            if len(chat) > 4 and choose.random() < 0.3:
                del chat[-3:-1]
            found = client.explain(chat)
            predicted = found["matched_tokens"] + sum(found["tiers"].values())
            answer, reused = client.ask(chat)
            assert reused == predicted or not found["complete"], number
            equal += reused == predicted
            restored += bool(found["tiers"])
            chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"And page {number}?"}]
        status = client.status()["slots"]
        assert status["confirmed"] == status["restores"] >= restored > 0
    table("llama.cpp: predictions equal to reports", f"{equal}/{_CHATS}, {restored} of them from disk")


def test_a_conversation_is_restored_after_a_crash(engines: Path, tmp_path: Path, table: Table) -> None:
    chat = long("a crash", 60)
    with llama_server(engines, tmp_path / "slots") as server:
        with run_client(server, tmp_path, save_after=0.1) as client:
            chat.append({"role": "assistant", "content": client.ask(chat)[0]})
            until(lambda: client.status()["slots"]["saved"] == 1)
        server.restart()
        with run_client(server, tmp_path) as client:
            question = [*chat, {"role": "user", "content": "Go on."}]
            found = client.explain(question)
            _, reused = client.ask(question)
            assert reused == found["tiers"]["disk"] + found["matched_tokens"] > 0.95 * found["prompt_tokens"]
    table("llama.cpp: reused after kill -9", f"{reused}/{found['prompt_tokens']}")


def test_restores_without_swa_full_are_detected(engines: Path, tmp_path: Path) -> None:
    server = LlamaServer(engines, tmp_path / "slots", 1, "--cache-ram", "0")
    server.command.remove("--swa-full")
    try:
        server.start()
        with run_client(server, tmp_path, save_after=0.0) as client:
            # Longer than the window, so that files are incomplete.
            chats = [long(f"topic {number}", 60) for number in range(2)]
            for number in range(5):
                client.ask([*chats[number % 2], {"role": "user", "content": str(number)}])
            assert any("--swa-full" in note for note in client.status()["notes"])
            assert client.status()["slots"]["restores"] == 3
    finally:
        server.kill()
