"""A proxy in front of fake llama-servers."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvproxy.settings import load_settings
from tests.polling import until
from tests.servers import run_app, run_proxy
from tests.upstreams.fleets import Proxy
from tests.upstreams.llama.fake_server import Llama

TURN = "Tell me of the block cache, at some length, please. "


class LlamaProxy(Proxy):
    """Client of a proxy in front of llama.cpp."""

    def turn(self, conversation: list[dict[str, Any]], text: str) -> int:
        """Append a turn and its response to a conversation; return the reused tokens."""
        conversation.append({"role": "user", "content": text})
        answer = self.ask(conversation).raise_for_status().json()
        conversation.append(answer["choices"][0]["message"])
        self.idle()
        return int(answer["timings"]["cache_n"])

    def predicted(self, messages: list[dict[str, Any]]) -> int:
        found = self.explain(messages)
        return int(found["matched_tokens"]) + sum(found["tiers"].values())

    def idle(self) -> None:
        """Wait until the contents of all slots are known."""
        until(lambda: all(each["state"] != "used" for each in self.get("/blocks")))


@contextlib.contextmanager
def proxy(data: Path, url: str, **slots: Any) -> Iterator[LlamaProxy]:
    """Run a proxy until it has identified its llama-server."""
    # Idle slots are not saved by default.
    kept = {"save_after": 3600.0} | slots
    settings = load_settings(
        data=data, upstream=url, cache={"enabled": False}, slots=kept, routing={"health_interval": 0.1}
    )
    with run_proxy(settings) as (own, services):
        running = LlamaProxy(own, services)
        until(lambda: running.status()["slots"] is not None or running.status()["advice"])
        yield running


@contextlib.contextmanager
def llama(data: Path, server: Llama | None = None, **slots: Any) -> Iterator[tuple[Llama, LlamaProxy]]:
    """Run a fake server and a proxy."""
    server = server or Llama()
    with run_app(server.app) as url, proxy(data, url, **slots) as running:
        yield server, running


def conversation(topic: str, length: int = 3) -> list[dict[str, Any]]:
    """Return a conversation with a unique prefix that is long enough to be saved."""
    return [{"role": "system", "content": f"{topic}: " + TURN * length}]
