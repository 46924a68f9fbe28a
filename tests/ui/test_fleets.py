"""The dashboard in front of servers: it shows the data of the admin routes for vLLM with events and for llama.cpp."""

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.polling import until
from tests.ui.page import Page
from tests.upstreams.fleets import chat
from tests.upstreams.mixed_fleets import IN_VLLM, Mixed, run_mixed

# The cells of the table with a caption; null if the table is missing.
CELLS = """
const table = [...document.querySelectorAll("table")].find((each) => each.caption?.textContent === arguments[0]);
return table ? [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent)) : null;
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    with run_mixed(tmp_path_factory.mktemp("mixed"), save_after=0.0) as running:
        until(lambda: any(block["medium"] == "disk" for block in running.get("/blocks")))
        httpx.post(f"{running.url}/v1/chat/completions", json=chat(IN_VLLM + "Why?")).raise_for_status()
        yield running


def cells(page: Page, caption: str) -> list[list[str]]:
    return list(page.run(CELLS, caption) or [])


def shown(value: Any) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def test_servers_and_mirrors_are_those_of_the_admin_routes(page: Page, mixed: Mixed) -> None:
    page.open(mixed.url, "upstreams")

    def servers() -> list[list[str]]:
        names = ("url", "state", "requests", "load", "sent", "errors", "retried", "ejections")
        return [[shown(each[name]) for name in names] for each in mixed.get("/upstreams")]

    assert [row[1] for row in servers()] == ["up", "up"]
    assert sum(each["sent"] for each in mixed.get("/upstreams")) == 2
    page.until(lambda: [row[:2] + row[3:9] for row in cells(page, "Servers")] == servers())

    def mirrors() -> list[list[str]]:
        return [
            [
                each["url"],
                stream["endpoint"],
                "following",
                "complete",
                shown(stream["batches"]),
                shown(each["cached_blocks"]),
            ]
            for each in mixed.get("/upstreams")
            for stream in each["streams"]
        ]

    assert [row[-1] for row in mirrors()] == ["6"]
    page.until(lambda: cells(page, "Mirrors") == mirrors())

    # Published blocks appear, and removed blocks disappear.
    publisher = mixed.engine.sockets
    publisher.send(publisher.model.store([101, 102], tokens=list(range(32))))
    page.until(lambda: (rows := cells(page, "Mirrors")) == mirrors() and rows[0][-1] == "8")
    publisher.send(publisher.model.remove([101, 102]))
    page.until(lambda: (rows := cells(page, "Mirrors")) == mirrors() and rows[0][-1] == "6")

    page.click(f"button[aria-label='Drain {mixed.vllm}']")
    page.until(lambda: [row[1] for row in cells(page, "Servers")] == ["up", "draining"])
    assert [each["state"] for each in mixed.get("/upstreams")] == ["up", "draining"]
    assert "gets no new ones" in page.text("main [role=status]")
    page.click(f"button[aria-label='Undrain {mixed.vllm}']")
    page.until(lambda: [row[1] for row in cells(page, "Servers")] == ["up", "up"])


def test_blocks_and_reuse_are_shown_by_medium(page: Page, mixed: Mixed) -> None:
    publisher = mixed.engine.sockets
    publisher.send(publisher.model.store([201, 202], tokens=list(range(32)), medium="CPU"))
    publisher.send(publisher.model.store([203], tokens=list(range(16)), medium="DISK"))
    engine = mixed.services.built.fleet.find_engine(mixed.vllm)  # type: ignore[union-attr]
    try:
        page.open(mixed.url, "upstreams")
        wanted = [[mixed.vllm, "CPU", "2", "0", "–"], [mixed.vllm, "DISK", "1", "0", "–"]]
        page.until(lambda: cells(page, "Media") == wanted)
        # The engine reports the reuse of a request whose prefix it loaded, as predicted.
        engine.serving_upstream(64, 0, loaded={"CPU": 32}).report_reuse("m", 80, 64)
        page.until(lambda: cells(page, "Media")[0] == [mixed.vllm, "CPU", "2", "32", "–"])
        page.until(lambda: "32 from CPU" in page.text("main"))
        shares = {row[0]: row[4] for row in cells(page, "Reuse")}
        assert shares[mixed.vllm] == "80.0%"
    finally:
        for medium in ("CPU", "DISK"):
            publisher.send({"type": "TierBlocksCleared", "medium": medium})


def test_slots_and_files_are_listed_and_no_mirrored_block(page: Page, mixed: Mixed) -> None:
    page.open(mixed.url, "upstreams")
    begins = {chain["leaf"]: chain["first_text"] for chain in mixed.get("/blocks/chains")}

    def wanted() -> list[list[str]]:
        blocks = [block for block in mixed.get("/blocks") if block["engine"] == mixed.llama]
        return [
            [
                block["medium"],
                block["state"],
                shown(block["num_tokens"]),
                (block["hash"] or "–")[:12],
                block["engine"],
                begins.get(block["hash"], "–"),
            ]
            for block in blocks
        ]

    places = [row[0] for row in wanted()]
    assert sorted(set(places)) == ["disk", "slot 0", "slot 1"]
    assert any("You are a cook" in row[-1] for row in wanted())
    page.until(lambda: cells(page, "Slots and files") == wanted())


def test_the_pool_shows_what_both_hold(page: Page, mixed: Mixed) -> None:
    page.open(mixed.url, "pool")

    def legend() -> set[str]:
        states = [row["state"] for row in mixed.get("/blocks")]
        return {f"{state}{states.count(state):,}" for state in set(states)}

    page.until(lambda: set(page.texts(".legend li")) == legend())
    figures = mixed.get("/blocks/stats")
    for name in ("cached", "evictions"):
        page.until(lambda name=name: page.text(f"[data-figure={name}]") == f"{figures[name]:,}")
    page.click("button", "Chains")
    branches = mixed.get("/blocks/tree")
    page.until(
        lambda: (
            [text.split() for text in page.texts(".branch .text")]
            == [(each["text"] or "unknown text").split() for each in branches]
        )
    )
    page.click("button", "Eviction order")
    page.until(lambda: "Engines do not publish their order of eviction" in page.text(".panes"))


def test_the_reasons_are_those_of_the_time_that_is_chosen(page: Page, mixed: Mixed) -> None:
    """They are not limited to the current hour or week of the calendar."""
    until(lambda: len(mixed.get("/log")) >= 2)
    count = len(mixed.get("/log"))
    with (
        contextlib.closing(sqlite3.connect(mixed.services.settings.data / "journal.db", timeout=300)) as connection,
        connection,
    ):
        connection.execute("update records set time = time - (? - number) * 86400 - 86400", [count])
    page.open(mixed.url)
    page.click("button", "7 d")
    page.until(lambda: page.text("[data-figure=requests]") == str(count))
    page.until(lambda: sum(map(int, page.texts(".bars li .number:nth-child(3)"))) == count)
    page.click("button", "1 h")
    page.until(lambda: page.text("[data-figure=requests]") == "0")


def test_an_engine_that_is_gone_is_told(page: Page, mixed: Mixed) -> None:
    mixed.engine.mood = "sick"
    try:
        page.open(mixed.url)
        page.until(lambda: page.text("#banner").startswith(f"1 of 2 upstreams fail: {mixed.vllm}"))
        page.open(mixed.url, "upstreams")
        until(lambda: next(each for each in mixed.get("/upstreams") if each["url"] == mixed.vllm)["state"] != "up")
        (state,) = [each["state"] for each in mixed.get("/upstreams") if each["url"] == mixed.vllm]
        page.until(lambda: [row[1] for row in cells(page, "Servers")] == ["up", state])
        page.until(lambda: f"{mixed.vllm}: /health answered 500" in page.text("main"))
    finally:
        mixed.engine.mood = "well"
