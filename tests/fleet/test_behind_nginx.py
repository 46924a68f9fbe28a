"""Three proxy processes on one PostgreSQL behind nginx, with the site of `deploy/compose`, act as one proxy."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kvproxy.client_keys import add_client, remove_client
from kvproxy.settings import Settings, load_settings
from tests.faults.proxies import CHAT, chat, proxy_process
from tests.nginx_server import needs_nginx, run_nginx
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.ports import free_port
from tests.postgres_server import run_postgres
from tests.processes import answers

ROOT = Path(__file__).resolve().parents[2]
pytestmark = needs_nginx


@dataclass(frozen=True)
class Site:
    """The URL of nginx, the URLs of the proxies, and the operator's settings."""

    url: str
    proxies: list[str]
    operator: Settings


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, port = tmp_path_factory.mktemp("fleet"), free_port()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(run_postgres()).url
        upstream = stack.enter_context(run_plain_upstream())
        operator = load_settings(data=folder / "operator", store=store)
        # Without any client, the proxies would be open.
        add_client(operator, "first")
        proxies = []
        for name in "abc":
            flags = ("--store", store, "--no-semantic")
            process = proxy_process(upstream, folder / name, folder / f"{name}.log", *flags)
            proxies.append(stack.enter_context(process).url)
        stack.enter_context(run_nginx(folder, _configuration(proxies, port)))
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/health"))
        yield Site(url, proxies, operator)


def _configuration(proxies: list[str], port: int) -> str:
    text = (ROOT / "deploy/compose/fleet-nginx.conf").read_text()
    server = "    server kvproxy:8484 max_fails=1 fail_timeout=5s;\n"
    assert server in text
    text = text.replace(server, "".join(server.replace("kvproxy:8484", url[len("http://") :]) for url in proxies))
    return text.replace("listen 80;", f"listen 127.0.0.1:{port};")


async def _ask_all(url: str, key: str, requests: int, at_once: int) -> list[httpx.Response]:
    limit, headers = asyncio.Semaphore(at_once), {"authorization": f"Bearer {key}"}

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        async with limit:
            return await client.post(url + CHAT, json=chat("Hi"))

    async with httpx.AsyncClient(timeout=60, headers=headers) as client:
        return await asyncio.gather(*(ask(client) for _ in range(requests)))


def _added(site: Site, name: str, **limits: int) -> str:
    """Add a client, and wait until all proxies accept its key. Return the key."""
    key = add_client(site.operator, name, **limits)
    # A proxy loads all clients together. Requests of this client leave the quota of the first client unused.
    headers = {"authorization": f"Bearer {add_client(site.operator, f'{name}-probe')}"}
    until(lambda: all(httpx.get(f"{url}/v1/models", headers=headers).status_code != 401 for url in site.proxies))
    return key


def test_a_client_gets_its_requests_per_minute_in_total(site: Site) -> None:
    key = _added(site, "limited", requests_per_minute=100)
    began = time.monotonic()
    answers = asyncio.run(_ask_all(site.url, key, 160, 24))
    refilled = (time.monotonic() - began) * 100 / 60
    counts = Counter(answer.status_code for answer in answers)
    assert set(counts) == {200, 429}
    assert 97 <= counts[200] <= 103 + refilled, (counts, refilled)


def test_a_revoked_key_is_refused_on_each_proxy_within_two_seconds(site: Site) -> None:
    key = _added(site, "revoked")
    headers = {"authorization": f"Bearer {key}"}
    assert {answer.status_code for answer in asyncio.run(_ask_all(site.url, key, 12, 4))} == {200}
    remove_client(site.operator, "revoked")
    removed = time.monotonic()
    for url in site.proxies:
        late = False
        while httpx.post(url + CHAT, json=chat("Hi"), headers=headers).status_code != 401:
            assert not late, f"{url} accepted a request that was sent two seconds after the removal"
            time.sleep(0.05)
            late = time.monotonic() - removed > 2
    assert {answer.status_code for answer in asyncio.run(_ask_all(site.url, key, 12, 4))} == {401}
