"""Several proxies on one PostgreSQL."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kvproxy.http.services import Services
from kvproxy.settings import load_settings
from tests.servers import run_proxy


@dataclass(frozen=True)
class Proxy:
    url: str
    services: Services

    def ask(self, key: str = "", question: str = "Hi", **more: Any) -> httpx.Response:
        """Send a chat request."""
        body = {"model": "m", "messages": [{"role": "user", "content": question}], **more}
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=300)


@contextlib.contextmanager
def run_proxies(
    folder: Path, store: str, upstream: str | list[str], count: int = 3, **settings: Any
) -> Iterator[list[Proxy]]:
    """Run proxies with a data folder each, which know each other when they have started."""
    with contextlib.ExitStack() as stack:
        proxies = []
        for number in range(count):
            options = {
                "data": folder / f"p{number}",
                "store": store,
                "upstream" if isinstance(upstream, str) else "upstreams": upstream,
                "cache": {"semantic": False},
            }
            proxies.append(Proxy(*stack.enter_context(run_proxy(load_settings(**options | settings)))))
        yield proxies
