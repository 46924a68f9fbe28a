"""llama.cpp's own server: what is said of its slots is what it does, and what it had is back after a crash."""

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


class Asker:
    """A client of a proxy in front of llama-server."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=600)

    def ask(self, messages: list[dict[str, str]]) -> tuple[str, int]:
        """The answer, and how many tokens of the prompt were reused."""
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
def asking(server: LlamaServer, data: Path, **slots: Any) -> Iterator[Asker]:
    """A proxy in front of a server, and a client of it."""
    settings = load_settings(
        data=data, upstream=server.url, cache={"enabled": False}, slots=slots, routing={"health_interval": 0.5}
    )
    with run_proxy(settings) as (url, _):
        asker = Asker(url)
        until(lambda: asker.status()["slots"] is not None)
        yield asker
        asker.close()


def long(topic: str, sentences: int = 12) -> list[dict[str, str]]:
    text = "".join(f"Page {at} of the book of {topic} tells of river {at * 7}. " for at in range(sentences))
    return [{"role": "user", "content": text}]


def test_predictions_equal_reports(engines: Path, tmp_path: Path, table: Table) -> None:
    """Chats with shared beginnings over two slots, with restarts of the server and answers that are thrown away."""
    choose = random.Random(14)
    equal = restored = 0
    with llama_server(engines, tmp_path / "slots") as server, asking(server, tmp_path, save_after=0.2) as asker:
        chats = [long(f"{'the' if number % 2 else 'a'} topic {number}", choose.choice([6, 12])) for number in range(5)]
        for number in range(_CHATS):
            if number in (15, 30):
                server.restart()
                until(lambda: asker.status()["error"] is None)
            chat = choose.choice(chats)
            if len(chat) > 4 and choose.random() < 0.3:
                del chat[-3:-1]
            found = asker.explain(chat)
            predicted = found["matched_tokens"] + sum(found["tiers"].values())
            answer, reused = asker.ask(chat)
            assert reused == predicted or not found["complete"], number
            equal += reused == predicted
            restored += bool(found["tiers"])
            chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"And page {number}?"}]
        status = asker.status()["slots"]
        assert status["shown"] == status["restores"] >= restored > 0
    table("llama.cpp: predictions equal to reports", f"{equal}/{_CHATS}, {restored} of them from disk")


def test_a_conversation_is_back_after_a_crash(engines: Path, tmp_path: Path, table: Table) -> None:
    chat = long("what was lost", 60)
    with llama_server(engines, tmp_path / "slots") as server:
        with asking(server, tmp_path, save_after=0.1) as asker:
            chat.append({"role": "assistant", "content": asker.ask(chat)[0]})
            until(lambda: asker.status()["slots"]["saved"] == 1)
        server.restart()
        with asking(server, tmp_path) as asker:
            question = [*chat, {"role": "user", "content": "Go on."}]
            found = asker.explain(question)
            _, reused = asker.ask(question)
            assert reused == found["tiers"]["disk"] + found["matched_tokens"] > 0.95 * found["prompt_tokens"]
    table("llama.cpp: reused after kill -9", f"{reused}/{found['prompt_tokens']}")


def test_a_restore_without_swa_full_is_not_believed(engines: Path, tmp_path: Path) -> None:
    server = LlamaServer(engines, tmp_path / "slots", 1, "--cache-ram", "0")
    server.command.remove("--swa-full")
    try:
        server.start()
        with asking(server, tmp_path, save_after=0.0) as asker:
            # Longer than the window, else there is nothing that a file could lack.
            chats = [long(f"topic {number}", 60) for number in range(2)]
            for number in range(5):
                asker.ask([*chats[number % 2], {"role": "user", "content": str(number)}])
            assert any("--swa-full" in note for note in asker.status()["notes"])
            assert asker.status()["slots"]["restores"] == 3
    finally:
        server.kill()
