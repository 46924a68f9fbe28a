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
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.client_keys import add_client, remove_client
from kvproxy.settings import Settings, load_settings
from tests.faults.proxies import CHAT, chat, proxy_process
from tests.nginx_server import needs_nginx, run_nginx
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.ports import free_port
from tests.postgres_server import run_postgres
from tests.processes import answers
from tests.servers import run_upstream

ROOT = Path(__file__).resolve().parents[2]
ADMIN = "a-long-token-of-the-operator"
pytestmark = needs_nginx


@dataclass(frozen=True)
class Site:
    """The URL of nginx, the URLs of the proxies, the operator's settings, and the bodies that the upstream received."""

    url: str
    proxies: list[str]
    operator: Settings
    received: list[bytes]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, received, port = tmp_path_factory.mktemp("fleet"), list[bytes](), free_port()

    async def answer(request: Request) -> Response:
        if request.method == "POST":
            received.append(await request.body())
            await asyncio.sleep(0.5)
        return JSONResponse(WHOLE)

    with contextlib.ExitStack() as stack:
        store = stack.enter_context(run_postgres()).url
        upstream = stack.enter_context(run_upstream(answer))
        operator = load_settings(data=folder / "operator", store=store)
        # Without any client, the proxies would be open.
        add_client(operator, "first")
        proxies = []
        for name in "abc":
            flags = ("--store", store, "--no-semantic")
            process = proxy_process(upstream, folder / name, folder / f"{name}.log", *flags, admin_token=ADMIN)
            proxies.append(stack.enter_context(process).url)
        stack.enter_context(run_nginx(folder, _configuration(proxies, port)))
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/health"))
        yield Site(url, proxies, operator, received)


def _configuration(proxies: list[str], port: int) -> str:
    text = (ROOT / "deploy/compose/fleet-nginx.conf").read_text()
    server = "    server kvproxy:8484 max_fails=1 fail_timeout=5s;\n"
    assert server in text
    text = text.replace(server, "".join(server.replace("kvproxy:8484", url[len("http://") :]) for url in proxies))
    return text.replace("listen 80;", f"listen 127.0.0.1:{port};")


async def _ask_all(url: str, key: str, requests: int, at_once: int, question: str = "Hi") -> list[httpx.Response]:
    limit, headers = asyncio.Semaphore(at_once), {"authorization": f"Bearer {key}"}

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        async with limit:
            return await client.post(url + CHAT, json=chat(question))

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
    answers = asyncio.run(_ask_all(site.url, key, 250, 24))
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


def test_fifty_identical_requests_are_one_upstream_call(site: Site) -> None:
    key = _added(site, "many")
    answers = asyncio.run(_ask_all(site.url, key, 50, 50, "Which of the fifty is first?"))
    assert Counter(answer.status_code for answer in answers) == {200: 50}
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {"Hi"}
    assert sum(b"Which of the fifty" in body for body in site.received) == 1


def test_the_dashboard_of_each_proxy_shows_all_requests(site: Site) -> None:
    key = _added(site, "shown")
    answers = asyncio.run(_ask_all(site.url, key, 30, 8, "Who sees this request?"))
    sent = {answer.headers["x-request-id"] for answer in answers}
    assert len(sent) == 30

    def shown(url: str) -> set[str]:
        headers, query = {"authorization": f"Bearer {ADMIN}"}, {"tenant": "client:shown", "limit": 100}
        rows = httpx.get(f"{url}/admin/log", headers=headers, params=query).raise_for_status().json()
        return {row["request_id"] for row in rows}

    for url in site.proxies:
        until(lambda url=url: shown(url) == sent)
