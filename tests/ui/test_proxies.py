"""The dashboard of other proxies: one that stops and starts again, one with a token, and one with a large pool."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.errors import KvproxyError
from kvproxy.http import ui
from kvproxy.settings import RoutingSettings, load_settings
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.processes import serve
from tests.servers import run_front, run_proxy
from tests.ui.large import Worker, run_large
from tests.ui.page import Page

STATIC = Path(ui.__file__).parent / "static"
# How many pixels the map has, and how many colours.
COLOURS = """
const map = document.querySelector("canvas.map");
const { data } = map.getContext("2d").getImageData(0, 0, map.width, map.height);
const seen = new Set();
for (let place = 0; place < data.length; place += 4) seen.add((data[place] << 16) | (data[place + 1] << 8) | data[place + 2]);
return [map.width * map.height, seen.size];
"""
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
        assert httpx.post(url, json=body, headers=headers, timeout=30).status_code == 200

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


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, KVCacheManager]]:
    with run_large(tmp_path_factory.mktemp("large"), 20_001) as (url, manager, _):
        yield url, manager


@pytest.fixture
def last_row(page: Page, large: tuple[str, KVCacheManager]) -> Iterator[str]:
    """The number of the block in the last row of the eviction order, which is the current row."""
    url, manager = large
    page.open(url, "pool")
    page.click("button", "Eviction order")
    page.until(lambda: page.texts(ORDER))
    last = str([block.id for block in manager.pool.free_queue][-1])

    def is_current() -> bool:
        page.run("document.querySelector('.panes .grid').focus()")
        page.press("\ue010")
        return page.texts(CURRENT) == [last]

    page.until(is_current)
    yield last
    page.close()


def test_twenty_thousand_blocks_are_shown(page: Page, large: tuple[str, KVCacheManager]) -> None:
    url, _ = large
    page.open(url, "pool")
    states = [row["state"] for row in httpx.get(f"{url}/admin/blocks", timeout=30).json()]
    for name in ("cached", "used", "free"):
        page.until(lambda name=name: page.text(f"[data-state={name}] .number") == f"{states.count(name):,}")

    def is_drawn() -> bool:
        pixels, colours = page.run(COLOURS)
        return bool(pixels >= 4 * 20_001 and colours >= 4)

    page.until(is_drawn)
    page.close()


def test_a_block_opens_by_the_keyboard(page: Page, last_row: str) -> None:
    assert len(page.texts(ORDER)) < 60, "rows out of sight are in the page"
    page.press("\ue007")
    page.until(lambda: page.text(".beside h2") == f"Block {last_row}" and page.text(".beside dl"))


def test_a_failing_request_changes_neither_focus_nor_view(
    page: Page, last_row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[object] = []

    async def fail(self: Worker, read: object) -> None:
        failures.append(read)
        raise KvproxyError("the engine is busy")

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "inspect", fail)
        page.until(lambda: len(failures) >= 3)
        assert page.texts(CURRENT) == [last_row]
        page.press("\ue007")
        page.until(lambda: page.text(".beside .note") == "the engine is busy")
    page.until(lambda: page.text(".beside h2") == f"Block {last_row}" and page.text(".beside dl"))
    page.driver.get_log("browser")


def test_the_current_row_follows_its_block(page: Page, last_row: str, large: tuple[str, KVCacheManager]) -> None:
    manager = large[1]
    before = page.find(".panes .grid").get_attribute("aria-rowcount")
    assert manager.allocate_slots(CacheRequest("new", range(16 * 100)), 16 * 100) is not None
    page.until(lambda: page.find(".panes .grid").get_attribute("aria-rowcount") != before)
    page.until(lambda: page.texts(CURRENT) == [last_row])
