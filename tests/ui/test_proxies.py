"""The dashboard of a proxy that stops, of one with a token, and of one whose engine fails."""

import re
import sys
import time
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.errors import KvproxyError
from kvproxy.http import ui
from kvproxy.http.services import Services
from kvproxy.settings import RoutingSettings, load_settings
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.processes import serve
from tests.servers import run_front, run_proxy, run_upstream
from tests.ui.conftest import ASKED, ask, body_of
from tests.ui.page import Page

STATIC = Path(ui.__file__).parent / "static"
CURRENT = ".panes .grid .row.current > :nth-child(2)"
ORDER = ".panes .grid .row[id]"
ROWS = ".grid .row[id] > :last-child"


def test_it_survives_a_restart_of_the_proxy(page: Page, tmp_path: Path) -> None:
    port = free_port()

    def ask(question: str) -> None:
        body = {"model": "plain", "messages": [{"role": "user", "content": question}]}
        # The page reads a question from its stored response, once.
        headers = {"cache-control": "confirm"}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        assert httpx.post(url, json=body, headers=headers, timeout=300).status_code == 200

    with run_plain_upstream() as upstream:
        settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False})
        with run_proxy(settings, port) as (url, _):
            page.open(url, "journal")
            ask("before")
            page.until(lambda: page.texts(ROWS) == ["before"])
        page.until(lambda: "does not answer" in page.text("#banner"))
        page.until(lambda: page.text("#connection") == "Not connected")
        with run_proxy(settings, port):
            page.until(lambda: page.text("#connection") == "Connected")
            ask("after")
            page.until(lambda: page.texts(ROWS) == ["after", "before"])
            page.open(url, "upstreams")
            page.until(lambda: upstream in page.text("main table"))
            page.close()


def test_failures_of_an_upstream_lead_to_its_requests(page: Page, tmp_path: Path) -> None:
    async def fail(request: Request) -> Response:
        return JSONResponse({"error": {"message": "out of memory"}}, 500)

    with run_upstream(fail) as upstream, run_front(tmp_path, upstream) as (url, services):
        for question in "ab":
            assert ask(url, "alice", question).status_code == 500
        services.journal.latest(1)
        page.driver.get_log("browser")
        page.open(url, "upstreams")
        page.until(lambda: page.text("main tbody a") == "2")
        page.click("main tbody a")
        page.until(lambda: page.texts(ROWS) == ["b", "a"])
        # A proxy without an engine is asked for its blocks once.
        page.open(url, "upstreams")
        page.until(lambda: page.text("main tbody a") == "2")
        refused = [entry["message"] for entry in page.driver.get_log("browser") if "409" in entry["message"]]
        assert len(refused) <= 2, refused
        page.close()


def test_an_outage_of_the_upstream_is_on_the_first_page_within_five_seconds(page: Page, tmp_path: Path) -> None:
    """With the default settings, and without a request that could have noticed it."""
    # A busy machine is slower than both intervals.
    (interval,) = re.findall(r"const HEALTH = (\d+);", (STATIC / "app.js").read_text())
    assert RoutingSettings().health_interval + int(interval) / 1000 < 5
    script = "import time; from tests.plain_upstream import run_plain_upstream as run\nwith run({}): time.sleep(600)"
    port = free_port()
    with serve([sys.executable, "-c", script.format(port)], port, tmp_path / "log") as upstream:
        settings = load_settings(data=tmp_path / "data", upstream=upstream.url, cache={"semantic": False})
        with run_proxy(settings) as (url, _):
            page.open(url)
            page.until(lambda: page.text("#connection") == "Connected")
            time.sleep(1)
            assert page.text("#banner") == ""
            upstream.process.kill()
            page.until(lambda: "No upstream answers" in page.text("#banner"))
            page.until(lambda: page.text("#connection") == "Degraded")
            page.until(lambda: upstream.url in page.text("#banner"))
            page.close()


def test_a_token_is_asked_for_and_kept_by_the_tab(page: Page, tmp_path: Path) -> None:
    with (
        run_plain_upstream() as upstream,
        run_front(tmp_path, upstream, admin_token="secret") as (url, _),
    ):
        page.open(url, "stored")
        page.find("dialog input").send_keys("wrong\ue007")
        page.until(lambda: "is not the admin token" in page.text("dialog .note"))
        field = page.find("dialog input")
        field.clear()
        field.send_keys("secret\ue007")
        page.until(lambda: "0 responses" in page.text(".filters"))
        page.until(lambda: page.text("#connection") == "Connected")
        page.close()
        page.open(url, "stored")
        page.until(lambda: "0 responses" in page.text(".filters"))
        assert page.run("return localStorage.length") == 0
        page.close()


def select_last_row(page: Page, url: str) -> str:
    """Make the last row of the eviction order the current one, and return the number of its block."""
    page.open(url, "pool")
    page.click("button", "Eviction order")
    page.until(lambda: page.texts(ORDER))
    last = str(httpx.get(f"{url}/admin/blocks/queue").json()[-1]["id"])

    def is_current() -> bool:
        page.run("document.querySelector('.panes .grid').focus()")
        page.press("\ue010")
        return page.texts(CURRENT) == [last]

    page.until(is_current)
    return last


def test_a_block_opens_by_the_keyboard(page: Page, url: str) -> None:
    last = select_last_row(page, url)
    assert len(page.texts(ORDER)) < 60, "rows out of sight are in the page"
    page.press("\ue007")
    page.until(lambda: page.text(".beside h2") == f"Block {last}" and page.text(".beside dl"))


def test_a_failing_request_changes_neither_focus_nor_view(
    page: Page, running: tuple[str, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[object] = []
    last = select_last_row(page, running[0])

    async def fail(self: object, read: object) -> None:
        failures.append(read)
        raise KvproxyError("the engine is busy")

    with monkeypatch.context() as patch:
        patch.setattr(type(running[1].built.worker), "inspect", fail)
        page.until(lambda: len(failures) >= 3)
        assert page.texts(CURRENT) == [last]
        page.press("\ue007")
        page.until(lambda: page.text(".beside .note") == "the engine is busy")
    page.until(lambda: page.text(".beside h2") == f"Block {last}" and page.text(".beside dl"))
    page.driver.get_log("browser")


def test_the_current_row_follows_its_block(page: Page, url: str) -> None:
    # The last rows are those of a tenant of its own.
    ask(url, "erin", "Whose block is in the last row?")
    last = select_last_row(page, url)
    before = page.find(".panes .grid").get_attribute("aria-rowcount")
    # Pinned blocks leave the order.
    tenant, question = ASKED[0]
    pin = {"params": {"name": "x"}, "headers": {"authorization": f"Bearer {tenant}"}, "json": body_of(question)}
    httpx.post(f"{url}/admin/blocks/pins", **pin).raise_for_status()  # type: ignore[arg-type]
    page.until(lambda: page.find(".panes .grid").get_attribute("aria-rowcount") != before)
    page.until(lambda: page.texts(CURRENT) == [last])
    httpx.delete(f"{url}/admin/blocks/pins/x").raise_for_status()
