"""One of two vLLM servers is killed under load: no request fails, and its blocks disappear from the mirror."""

import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from kvproxy.settings import load_settings
from tests.engines.chats import Chats, PredictionClient
from tests.engines.conftest import Table
from tests.engines.running import PLAIN, Vllm, running
from tests.polling import until
from tests.servers import run_proxy

CLIENTS = 4


class Load:
    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        source = Chats(100 + seed, 600)
        with httpx.Client(base_url=self._url, timeout=300) as client:
            while not self._stopping.is_set():
                body = {"model": PLAIN.name, "messages": source.next(), "max_tokens": 16, "temperature": 0}
                outcome = self._stream(client, body) if seed % 2 else self._whole(client, body)
                self.outcomes[outcome] += 1

    def _whole(self, client: httpx.Client, body: dict[str, Any]) -> str:
        try:
            answer = client.post("/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            # The head of the response was already sent.
            return self._failed(f"whole: {error!r}")
        return "ok" if answer.status_code == 200 else self._failed(f"whole: {answer.status_code} {answer.text[:200]}")

    def _stream(self, client: httpx.Client, body: dict[str, Any]) -> str:
        received = b""
        try:
            with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
                if answer.status_code != 200:
                    return self._failed(f"stream: {answer.status_code} {answer.read()[:200]!r}")
                for chunk in answer.iter_raw():
                    received += chunk
        except httpx.HTTPError as error:
            if not received:
                return self._failed(f"stream: {error!r}")
        return "ok" if b"[DONE]" in received else "broke off in its stream"

    def _failed(self, why: str) -> str:
        self.failures.append(why)
        return "failed"


def test_an_engine_is_killed_under_load(engines: Path, tmp_path: Path, table: Table) -> None:
    pair = [Vllm(engines, PLAIN, tmp_path / f"{number}.log") for number in range(2)]
    settings = load_settings(
        data=tmp_path / "proxy", upstreams=[engine.upstream() for engine in pair], cache={"enabled": False}
    )
    dead = pair[0]
    with running(*pair), run_proxy(settings) as (url, _), closing(PredictionClient(url, PLAIN.name, *pair)) as client:

        def of_dead() -> dict[str, Any]:
            return next(each for each in client.upstreams() if each["url"] == dead.url)

        with Load(url) as load:
            until(lambda: load.outcomes["ok"] >= 12 and of_dead()["cached_blocks"] > 0, 300)
            source = Chats(5, 600)
            cached = next(chat for chat in iter(source.next, None) if is_cached(client, dead.url, chat))
            dead.kill()
            before = load.outcomes["ok"]
            until(lambda: not of_dead()["cached_blocks"] or 0)
            shown = 0
            end = time.monotonic() + 20
            while time.monotonic() < end or load.outcomes["ok"] < before + 12:
                shown = max(shown, client.explain(cached)["engines"].get(dead.url, 0), of_dead()["cached_blocks"])
                time.sleep(0.1)
                assert time.monotonic() < end + 280
            dead.start()
            dead.wait()
            healthy = time.monotonic()
            until(lambda: of_dead()["state"] == "up")
            back = time.monotonic() - healthy
            sent = of_dead()["sent"]
            until(lambda: of_dead()["sent"] > sent, 120)
            until(lambda: of_dead()["complete"], 60)
        client.wait_for_mirrors()
        predicted = client.explain(cached)
        notes = of_dead()["notes"]
    table("an engine killed -9 under load", f"{dict(load.outcomes)}; back in rotation {back:.1f} s after its health")
    assert load.failures == []
    assert shown == 0, "blocks of the dead engine were shown as reusable"
    assert back < 10
    assert any("restarted" in note for note in notes), notes
    assert predicted["prompt_tokens"] > 0


def is_cached(client: PredictionClient, engine: str, chat: list[dict[str, str]]) -> bool:
    client.ask(chat)
    found: int = client.explain(chat)["engines"].get(engine, 0)
    return found > 0
