"""`kvproxy top` at a real terminal, in front of real proxies."""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproxy.commands.watch.history import History
from kvproxy.commands.watch.page import sparkline
from tests.commands.run import ask as ask_demo
from tests.commands.run import command, variables
from tests.commands.terminal import terminal, top
from tests.commands.test_commands import Demo
from tests.faults.proxies import ask, proxy_process
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.processes import Serving, serve

EVIL = "evil \x1b]0;renamed\x07\x1b[31mred\x9b5A question"
COLOURED = re.compile(rb"\x1b\[(\d+;)*([34][0-8]|9[0-7]|10[0-7])(;\d+)*m")
QUESTIONS = (
    "What is a token?",
    EVIL,
    "What is a token?",
    "A question so long that it fits no column of a terminal. " * 3,
)


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with run_plain_upstream() as url:
        yield url


@pytest.fixture(scope="module")
def proxy(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("top")
    with proxy_process(upstream, folder / "data", folder / "log", "--no-semantic") as serving:
        for question in QUESTIONS:
            assert ask(serving.url, question).status_code == 200
        yield serving


def test_keys_do_what_they_say(proxy: Serving) -> None:
    with top(proxy.url, 80) as screen:
        now = screen.shows(
            "prefix cache    unknown: the upstream keeps its own",
            "3 stored",
            "q quit  p pause  s sort  r reverse  / filter  b by",
        )
        assert re.search(r"^exact +[\d.]+ +\S+ +1\b", now, re.MULTILINE)
        assert re.search(r"^forward +[\d.]+ +\S+ +3\b", now, re.MULTILINE)

        screen.press("2")
        screen.until("4 of the last 4 requests, by time, falling")
        listed = screen.until(lambda text: len(layers(text)) == 4)
        newest, *_, oldest = [line for line in listed.splitlines() if re.match(r" \d\d:\d\d:\d\d", line)]
        assert "A question so long" in newest
        assert "What is a token?" in oldest

        screen.press("s")
        screen.until(lambda text: "by layer, falling" in text and layers(text)[-1] == "exact")
        screen.press("r")
        screen.until(lambda text: "by layer, rising" in text and layers(text)[0] == "exact")
        screen.press("S")
        screen.until("by time, rising")
        screen.press("r")

        screen.press("/")
        screen.until(lambda text: "words that it must hold" in text and "p pause" not in text)
        screen.press("EVIL miss")
        screen.until("1 of the last 4 requests")
        screen.press("\r")
        screen.until(lambda text: "p pause" in text and "1 of the last 4" in text)
        screen.press("\r")
        screen.shows("request_id", "Nothing like it was asked before")
        screen.press("\x1b")
        screen.until("1 of the last 4 requests")
        screen.press("\x1b")
        screen.until("4 of the last 4 requests")

        screen.press("p")
        screen.until("PAUSED")
        ask(proxy.url, "What is a token?")
        screen.press("3")
        screen.until("exact a second")
        screen.press("2")
        screen.until("4 of the last 4 requests")
        screen.press("p")
        screen.until(lambda text: "5 of the last 5" in text and "PAUSED" not in text)

        screen.press("4")
        screen.until(lambda text: re.search(r"http://127.0.0.1:\d+  up", text) is not None and "sent" in text)
        screen.press("5")
        screen.until(lambda text: re.search(r"^exact +2 +2 ", text, re.MULTILINE) is not None)

        screen.resize(200, 50)
        screen.press("2")
        # Control characters are written out, and none of them came through.
        evil = r"evil \x1b]0;renamed\x07\x1b[31mred\x9b5A question"
        screen.shows("tenant", "5 of the last 5", evil, QUESTIONS[-1][:80])
        screen.press("7")
        screen.shows("3 of 3 responses are shown", evil)
        screen.press("q")
        assert screen.ended() == 0
    assert b"\x1b]0;renamed" not in screen.sent
    assert b"\x1b[31m" not in screen.sent
    assert b"\xc2\x9b" not in screen.sent
    assert not COLOURED.search(screen.sent), "NO_COLOR is set"


def layers(text: str) -> list[str]:
    return re.findall(r"^ \d\d:\d\d:\d\d  (\w+)", text, re.MULTILINE)


def test_nothing_is_cut_off_at_80_columns(demo: Demo) -> None:
    """With a pool, a policy that learns, and all that the page has."""
    ask_demo(demo[0], "Is anything cut off?").raise_for_status()
    # Lines enough for all that a proxy may tell whom other tests asked before.
    with top(demo[0], 80, lines=50, colours=True) as screen:
        text = screen.shows("evictions", "first byte, ms", "in all", "stored", "prompt tokens)", "pool  ")
        assert "…" not in text
        for key, word in (("3", "evictions"), ("4", "the embedded engine answers here"), ("5", "at least")):
            screen.press(key)
            assert "…" not in screen.until(word)
        screen.press("\x03")
        assert screen.ended() == 0
    assert COLOURED.search(screen.sent)


def test_a_proxy_that_restarts_is_told_and_found_again(upstream: str, tmp_path: Path) -> None:
    port = free_port()
    flags = ["--port", str(port), "--upstream", upstream, "--no-semantic", "--data", str(tmp_path / "data")]
    start = [sys.executable, "-m", "kvproxy.commands", "serve", *flags]
    with contextlib.ExitStack() as opened:
        with serve(start, port, tmp_path / "log", env=os.environ) as first:
            ask(first.url, "Before?")
            screen = opened.enter_context(top(first.url, 80))
            first.process.send_signal(signal.SIGKILL)
            screen.until("NO ANSWER since")
            screen.press("2")
        with serve(start, port, tmp_path / "log", env=os.environ) as second:
            told = screen.until("the proxy was started again")
            assert "NO ANSWER" not in told
            screen.press("1")
            ask(second.url, "After?")
            screen.until(lambda text: re.search(r"^forward .* 1\b", text, re.MULTILINE) is not None)
            screen.press("q")
            assert screen.ended() == 0


def test_no_proxy_opens_no_screen() -> None:
    with terminal(command("top"), (80, 24), variables("http://127.0.0.1:9", {"TERM": "xterm"})) as screen:
        assert screen.ended() == 4
        assert "no proxy answers" in "\n".join(screen.lines())


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(4, 40), st.integers(1, 50))
def test_history_keeps_its_mean_and_its_bounds(values: list[float], most: int, width: int) -> None:
    past = History(most)
    for value in values:
        past.add({"x": value})
    points = past.series("x", width)
    whole = len(values) // past.span * past.span
    assert len(points) <= width
    assert len(past.series("x", 10**6)) < most + most % 2
    if whole:
        kept = past.series("x", 10**6)
        assert sum(kept) / len(kept) == pytest.approx(sum(values[:whole]) / whole)
        assert min(values) - 1e-6 <= min(points) <= max(points) <= max(values) + 1e-6


def test_bars_are_as_high_as_their_values() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▂▅█"
    assert sparkline([0, 0]) == "  "
    assert sparkline([]) == ""
