"""A proxy in front of fake llama-servers."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_app, run_proxy
from tests.upstreams.llama.fake_server import Llama

TURN = "Tell me of the block cache, at some length, please. "


class Proxy:
    """A proxy and conversations with it."""

    def __init__(self, url: str, services: Services) -> None:
        self.url = url
        self.services = services
        self._client = httpx.Client(base_url=url, timeout=30)

    def ask(self, messages: list[dict[str, Any]] | str, **options: Any) -> httpx.Response:
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return self._client.post("/v1/chat/completions", json={"model": "m", "messages": turns} | options)

    def turn(self, conversation: list[dict[str, Any]], text: str) -> int:
        """Append a turn and its response to a conversation; return the reused tokens."""
        conversation.append({"role": "user", "content": text})
        answer = self.ask(conversation).raise_for_status().json()
        conversation.append(answer["choices"][0]["message"])
        self.idle()
        return int(answer["timings"]["cache_n"])

    def get(self, path: str) -> Any:
        return self._client.get(f"/admin{path}").raise_for_status().json()

    def explain(self, messages: list[dict[str, Any]] | str) -> dict[str, Any]:
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        body = {"model": "m", "messages": turns}
        return dict(self._client.post("/admin/explain?api=chat", json=body).raise_for_status().json()["prefix"])

    def predicted(self, messages: list[dict[str, Any]]) -> int:
        found = self.explain(messages)
        return int(found["matched_tokens"]) + sum(found["tiers"].values())

    def status(self) -> dict[str, Any]:
        return dict(self.get("/upstreams")[0])

    def idle(self) -> None:
        """Wait until the contents of all slots are known."""
        until(lambda: all(each["state"] != "used" for each in self.get("/blocks")))

    def post(self, path: str, body: Any = None, **params: Any) -> httpx.Response:
        return self._client.post(f"/admin{path}", json=body, params=params)

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def proxy(data: Path, url: str, **slots: Any) -> Iterator[Proxy]:
    """Run a proxy until it has identified its llama-server."""
    # Idle slots are not saved by default.
    kept = {"save_after": 3600.0} | slots
    settings = load_settings(
        data=data, upstream=url, cache={"enabled": False}, slots=kept, routing={"health_interval": 0.1}
    )
    with run_proxy(settings) as (own, services):
        running = Proxy(own, services)
        try:
            until(lambda: running.status()["slots"] is not None or running.status()["advice"])
            yield running
        finally:
            running.close()


@contextlib.contextmanager
def llama(data: Path, server: Llama | None = None, **slots: Any) -> Iterator[tuple[Llama, Proxy]]:
    """Run a fake server and a proxy."""
    server = server or Llama()
    with run_app(server.app) as url, proxy(data, url, **slots) as running:
        yield server, running


def conversation(topic: str, length: int = 3) -> list[dict[str, Any]]:
    """Return a conversation with a unique prefix that is long enough to be saved."""
    return [{"role": "system", "content": f"{topic}: " + TURN * length}]
