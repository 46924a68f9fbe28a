"""The charts of the overview, files for spreadsheets, explanations, phones, and a proxy without requests."""

import contextlib
import csv
import itertools
import json
import math
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains

from kvproxy.http.services import Services
from kvproxy.journal.reasons import reasons
from kvproxy.settings import load_settings
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy
from tests.ui.conftest import ask
from tests.ui.page import Page
from tests.ui.screenshots import PICTURES, SCHEMES, WIDTHS

pytestmark = pytest.mark.usefixtures("calm")
DOCS = Path(__file__).resolve().parents[2] / "docs"

READY = {"overview": ".bars li", "matches": ".match", "journal": ".row[id]", "pool": ".legend li", "stored": ".row[id]"}
CHARTS = ["Requests over time by layer", "Hit rates over time", "Time to first byte over time"]
SHIFT, LEFT, END, ENTER, ESCAPE = "\ue008", "\ue012", "\ue010", "\ue007", "\ue00c"
# The distance between each two cards of a view that are beside or below each other; 0 or less if they touch.
GAPS = """
const boxes = [...document.querySelectorAll("main .panel, main .tile")]
  .filter((n) => n.getClientRects().length && !n.parentNode.closest(".panel")).map((n) => n.getBoundingClientRect());
const gap = (a, b) => Math.max(b.left - a.right, a.left - b.right, b.top - a.bottom, a.top - b.bottom);
return boxes.flatMap((a, i) => boxes.slice(i + 1).map((b) => gap(a, b)));
"""


def chart(label: str) -> str:
    return f".chart[aria-label='{label}']"


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services]]:
    """A proxy whose journal has three requests of the last minutes, and three from an hour before them."""
    with run_plain_upstream() as upstream:
        settings = load_settings(data=tmp_path_factory.mktemp("hour"), upstream=upstream, cache={"semantic": False})
        with run_proxy(settings) as (url, services):
            for question in ("one", "one", "two", "three", "three", "four"):
                assert ask(url, "alice", question).status_code == 200
            services.journal.latest(1)
            path = settings.data / "journal.db"
            with contextlib.closing(sqlite3.connect(path, timeout=300)) as connection, connection:
                connection.execute("update records set time = time - 1800 where number <= 3")
            yield url, services


def shown_requests(page: Page) -> int:
    return int(page.text("[data-figure=requests]").replace(",", "") or -1)


def test_the_docs_show_each_view_in_both_widths_and_themes() -> None:
    guide = (DOCS / "dashboard.md").read_text()
    for (name, _, _), (size, (width, height)), scheme in itertools.product(PICTURES, WIDTHS.items(), SCHEMES):
        file = f"images/dashboard-{name}-{size}-{scheme}.webp"
        assert f"({file}#gh-{scheme}-mode-only)" in guide
        with Image.open(DOCS / file) as picture:
            assert picture.size == (width, height)


def test_curves_show_rates_and_times_of_the_journal(page: Page, url: str) -> None:
    # A period with an end is loaded once, so the cursor and its text stay where the keys put them.
    until = math.ceil(time.time())
    found = httpx.get(f"{url}/admin/log/series?since=3600&until={until}&step=60").json()
    place = max(place for place, value in enumerate(found["backend_ms"]) if value is not None)
    page.open(url, f"overview?since=3600&until={until}")
    page.until(lambda: page.all(f"{chart(CHARTS[2])} canvas"))
    page.find(chart(CHARTS[1])).send_keys(END + LEFT * (len(found["backend_ms"]) - 1 - place))

    def told(label: str) -> str:
        return str(page.find(chart(label)).get_attribute("aria-valuetext"))

    share = found["reused_tokens"][place] / found["prompt_tokens"][place]
    page.until(lambda: f"prompt tokens reused {100 * share:.1f}%" in told(CHARTS[1]))
    assert "backend, median" in told(CHARTS[2])
    assert "backend, 95%" in told(CHARTS[2])
    assert "prefix" in told(CHARTS[0])
    # All charts have the same cursor.
    page.until(lambda: len({told(label).split(": ")[0] for label in CHARTS}) == 1)


def test_time_ranges_use_round_steps(page: Page, hour: tuple[str, Services]) -> None:
    url, _ = hour
    page.open(url, f"overview?since=600&until={math.ceil(time.time())}")
    page.until(lambda: shown_requests(page) >= 3)
    chart_ = page.find(chart(CHARTS[0]))
    # Of the first and the last interval, a part may be shown.
    assert int(chart_.get_attribute("aria-valuemax") or 0) in (60, 61)


def test_dragging_and_keys_zoom_in_and_out(page: Page, hour: tuple[str, Services]) -> None:
    url, _ = hour
    page.open(url, "overview?since=3600")
    page.until(lambda: shown_requests(page) == 6)
    over = page.find(f"{chart(CHARTS[0])} .u-over")
    width = over.size["width"]
    # The last quarter of the hour, without the requests from half an hour ago.
    ActionChains(page.driver).move_to_element_with_offset(over, width // 4, 0).click_and_hold().move_by_offset(
        width // 4 - 3, 0
    ).release().perform()
    page.until(lambda: shown_requests(page) == 3)
    assert "until=" in page.driver.current_url
    shared = page.driver.current_url
    page.close()
    page.driver.get(shared)
    page.until(lambda: shown_requests(page) == 3)
    # From there to the requests of this time.
    page.click("a", "Its requests")
    page.until(lambda: len(page.texts(".grid .row[id]")) == 3)
    page.click("button[aria-label='Show requests of all times']")
    page.until(lambda: len(page.texts(".grid .row[id]")) == 6)
    page.driver.back()
    page.until(lambda: shown_requests(page) == 3)
    ActionChains(page.driver).double_click(page.find(f"{chart(CHARTS[1])} .u-over")).perform()
    page.until(lambda: shown_requests(page) == 6)
    assert "until=" not in page.driver.current_url
    # So do keys.
    page.find(chart(CHARTS[0])).send_keys(END)
    page.find(chart(CHARTS[0])).send_keys(SHIFT + LEFT * 8)
    page.find(chart(CHARTS[0])).send_keys(ENTER)
    page.until(lambda: shown_requests(page) == 3)
    page.press(ESCAPE)
    page.until(lambda: shown_requests(page) == 6)


@pytest.fixture
def downloads(page: Page, tmp_path: Path) -> Path:
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    return tmp_path


def saved(page: Page, folder: Path, name: str) -> list[dict[str, str]]:
    """Press the button that saves a file, and read the file."""
    page.click(f"button[aria-label='Save {name} as CSV']")
    path = folder / f"kvproxy-{name}.csv"
    page.until(lambda: path.stat().st_size)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_records_are_saved_for_spreadsheets(page: Page, hour: tuple[str, Services], downloads: Path) -> None:
    url, services = hour
    ask(url, "alice", '=HYPERLINK("http://a", "two, lines")\nand a quote')
    services.journal.latest(1)
    page.open(url, "journal")
    page.until(lambda: page.texts(".grid .row[id]"))
    rows = saved(page, downloads, "requests")
    every = httpx.get(f"{url}/admin/log").json()
    assert [row["request_id"] for row in rows] == [each["request_id"] for each in every]
    # A spreadsheet must not run the text of a prompt.
    assert rows[0]["question"] == "'" + every[0]["question"]
    page.open(url, "overview?since=3600")
    page.until(lambda: shown_requests(page) >= 6)
    series = saved(page, downloads, "series")
    assert sum(int(row["exact"]) for row in series) == sum(each["layer"] == "exact" for each in every)
    page.until(lambda: page.all("main [role=region] td"))
    assert {row["name"] for row in saved(page, downloads, "savings")} >= {"exact", "forward"}


def test_reasons_are_explained_where_they_stand(page: Page, url: str) -> None:
    page.open(url, "overview?since=3600")

    def is_explained() -> bool:
        # The page may replace the link when it refreshes.
        link = page.find(".bars a[data-reason=veto-numbers]")
        page.run("arguments[0].focus()", link)
        is_shown = page.text("#tip") == reasons()["veto-numbers"].replace("`", "")
        return is_shown and link.get_attribute("aria-describedby") == "tip"

    page.until(is_explained)
    page.press(ESCAPE)
    page.until(lambda: not page.find("body").find_element("id", "tip").is_displayed())
    for view, place, reason in (("journal", ".row", "hit-exact"), ("matches", ".match", "veto-numbers")):
        page.open(url, view)

        def explains(place: str = f"{place} [data-reason={reason}]", reason: str = reason) -> bool:
            page.hover(page.find(place), 5, 5)
            return page.text("#tip") == reasons()[reason].replace("`", "")

        page.until(explains)


def test_matches_mark_the_words_that_differ(page: Page, url: str) -> None:
    page.open(url, "matches")
    page.until(lambda: any("200 blocks" in text for text in page.texts(".match")))
    marks = page.run(
        "const match = [...document.querySelectorAll('.match')].find((n) => n.textContent.includes('200 blocks'));"
        "return [...match.querySelectorAll('.said')].map((n) => [...n.querySelectorAll('mark')].map((m) => m.textContent))"
    )
    assert marks == [["200"], ["100"]]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[str]:
    """A proxy in front of an upstream without events, which no client has used yet."""
    with run_plain_upstream() as upstream:
        settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False})
        with run_proxy(settings) as (url, _):
            yield url


def test_an_unused_proxy_explains_itself(page: Page, fresh: str) -> None:
    page.open(fresh)
    page.until(lambda: page.text("[data-figure=curl]"))
    command = page.text("[data-figure=curl]")
    # The command works as it is.
    body = json.loads(command.partition(" -d '")[2].removesuffix("'"))
    assert body["model"] == "plain"
    where = command.split()[2]
    assert httpx.post(where, json=body).status_code == 200
    page.until(lambda: not page.all("[data-figure=curl]"))
    page.until(lambda: shown_requests(page) == 1)


def change_journal(services: Services, sql: str) -> None:
    """Change the records of a proxy once it has written them."""
    services.journal.latest(1)
    with (
        contextlib.closing(sqlite3.connect(services.settings.data / "journal.db", timeout=300)) as connection,
        connection,
    ):
        connection.execute(sql)


def test_the_smallest_time_with_requests_is_chosen_and_plugins_are_no_backend(page: Page, tmp_path: Path) -> None:
    chosen = "[aria-label=Time] [aria-pressed=true]"
    with run_plain_upstream() as upstream:
        settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False})
        with run_proxy(settings) as (url, services):
            ask(url, "alice", "one", **{"x-kvproxy-tags": "old"})
            change_journal(services, "update records set time = time - 7200")
            page.open(url)
            page.until(lambda: page.text(chosen) == "24 h" and shown_requests(page) == 1)
            assert page.text("[data-figure=requests] + small") == "in the last 24 h"
            assert page.text(".chart + .hint").endswith(": forward 1")
            ask(url, "alice", "two", **{"x-kvproxy-tags": "new"})
            services.journal.latest(1)
            page.open(url)
            page.until(lambda: page.text(chosen) == "5 min" and shown_requests(page) == 1)
            page.open(url, "overview?since=604800")
            page.until(lambda: page.text(chosen) == "7 d" and shown_requests(page) == 2)
            assert page.text("[data-layer=forward]") == "2"
            change_journal(services, "insert into names (name) values ('plugin')")
            change_journal(services, "update records set layer = (select number from names where name = 'plugin')")
            page.until(lambda: page.text("[data-layer=plugin]") == "2")
            assert page.text("[data-layer=forward]") == "0"
            # The journal can be limited to a tag.
            page.open(url, "journal?tag=old")
            page.until(lambda: page.texts(".grid .row[id] > :last-child") == ["one"])
            assert page.run("return [...document.querySelectorAll('.filters input')].at(-1).value") == "old"


def test_no_tile_without_a_value_and_no_tab_without_content(page: Page, fresh: str, url: str) -> None:
    page.open(fresh)
    page.until(lambda: page.text("[data-figure=requests]") == "0")
    page.until(lambda: page.texts("nav a") == ["Overview", "Journal", "Stored", "Upstreams", "Sessions", "Keys"])
    page.until(lambda: page.text("[data-figure=entries]") == "0")
    tiles = "return [...document.querySelectorAll('.tile')].filter(n => !n.hidden).map(n => n.children[1].textContent)"
    page.until(lambda: page.run(tiles) == ["0", "0"])
    page.close()
    page.open(url)
    page.until(lambda: page.texts("nav a") == ["Overview", "Journal", "Pool", "Matches", "Stored", "Sessions", "Keys"])


@pytest.mark.parametrize("width", [1440, 390])
def test_cards_do_not_touch_and_nothing_overflows(page: Page, url: str, width: int) -> None:
    with page.wide(width):
        for view, ready in READY.items():
            page.open(url, view)
            page.until(lambda ready=ready: page.all(ready))
            page.until(lambda: min(page.run(GAPS), default=10) >= 8)
            page.until(lambda: page.run("return document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize("width", [1440, 1280, 1024, 390])
def test_amounts_stay_in_their_tiles(page: Page, url: str, width: int) -> None:
    fits = (
        "const values = [...document.querySelectorAll('.tile:not([hidden]) strong')];"
        "for (const value of values) value.textContent = '12345.67 USD';"
        "return values.filter(n => n.scrollWidth > n.clientWidth).map(n => [n.textContent, n.scrollWidth, n.clientWidth])"
    )
    with page.wide(width):
        page.open(url)
        page.until(lambda: page.text("[data-figure=pool]"))
        assert page.run(fits) == []


def test_lists_show_the_question_on_a_phone(page: Page, url: str) -> None:
    with page.wide(390):
        for view in ("journal", "stored"):
            page.open(url, view)

            def is_wholly_in_sight() -> bool:
                node = next(each for each in page.all(".row[id] .question") if each.text == "What is a block?")
                fits = bool(page.run("return arguments[0].scrollWidth <= arguments[0].clientWidth", node))
                return fits and 0 <= node.location["x"] <= 390 - node.size["width"]

            page.until(is_wholly_in_sight)
            page.click(".row[id] .question", "What is a block?")
            page.until(lambda: page.all(".beside dl.facts"))
    # With more room, the columns come back.
    page.until(lambda: len(page.all(".row[id]:first-of-type > span")) != 1)
