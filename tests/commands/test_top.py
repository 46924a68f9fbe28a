"""kvproxy top."""

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyte
import pytest
from rich.console import Console
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from kvproxy.commands.top import _summary_facts, fit_screen, live_page
from kvproxy.index.errors import CacheStoreError
from kvproxy.operations.client import ProxyClient
from kvproxy.operations.proxy_statistics import Snapshot, Totals, rates_between, take_snapshot
from kvproxy.settings import load_settings
from tests.commands.run import ROOT, Demo, ask, command, kvproxy, result, variables
from tests.plain_upstream import run_plain_upstream
from tests.polling import until
from tests.ports import free_port
from tests.servers import run_front, run_proxy, run_upstream

COLOURED = re.compile(rb"\x1b\[(\d+;)*([34][0-8]|9[0-7]|10[0-7])(;\d+)*m")


def test_top_prints_one_update(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    url = demo[0]
    ask(url, "What is a token?", "For the test of top.")

    def exact_hits() -> list[str]:
        return re.findall(
            r'^kvproxy_requests_total{endpoint="chat",layer="exact".*', httpx.get(f"{url}/metrics").text, re.M
        )

    def sleep(seconds: float) -> None:
        before = exact_hits()
        ask(url, "What is a token?", "For the test of top.")
        until(lambda: exact_hits() != before)

    monkeypatch.setattr("kvproxy.commands.top.time", SimpleNamespace(sleep=sleep))
    last = result("top", url=url)
    monkeypatch.undo()
    assert last["per_second"]["exact"] > 0
    assert (last["from_cache"], last["first_byte_ms"]["error"], last["blocks"]["num_blocks"]) == (1.0, None, 512)
    assert min(last["first_byte_ms"]["exact"], last["entries"]) > 0
    assert last["requests"]["forward"] + last["requests"]["prefix"] > 0
    page = kvproxy("top", "--once", "--interval", 0.1, url=url, COLUMNS="20").stdout
    assert re.search(r"^Prefix hits\t.* prompt tokens\)", page, re.M), page
    assert page.startswith("layer\tper_second\tfirst_byte_ms\trequests\nexact\t")
    assert "Pool" in page


def test_top_states_that_compared_responses_were_not_served() -> None:
    now = Snapshot(1.0, totals=Totals(compared={"right": 3, "wrong": 89, "undecided": 16, "dropped": 0}))
    shown = dict(_summary_facts(rates_between(Snapshot(0.0), now)))["Not served"]
    assert shown.startswith("3 would have been right, 89 would have been wrong, 16 undecided (")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20)])
def test_the_live_page_shows_the_upstreams_and_counts_the_lines_that_do_not_fit(width: int, height: int) -> None:
    learned = {"observations": 40.0, "served": 30.0, "would_serve": 0.5, "undecided": 3.0, "most_wrong": 2.0}
    totals = Totals(lookups={"hit": 3}, learned=learned, saved={"exact": {"spent": 1.0, "money": 1.0}})
    traffic = rates_between(
        Snapshot(0.0), Snapshot(1.0, Counter({"500": 1}), Counter(forward=3, error=1), totals=totals)
    )
    upstream: Any = SimpleNamespace(url="http://127.0.0.1:8000", state="up", requests=0, sent=4, errors=1, models=())
    request: Any = SimpleNamespace(
        time=0.0, layer="forward", reason="miss", cost=None, total_ms=1.0, model="m", question="What?"
    )
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    page = live_page(traffic, [upstream], [request] * 20, width)
    with console.capture() as whole:
        console.print(page)
    with console.capture() as capture:
        console.print(fit_screen(page, console))
    lines, every = capture.get().splitlines(), whole.get().splitlines()
    assert len(lines) == height
    assert lines[-1].startswith(f"{len(every) - height + 1} lines not shown")
    shown = "\n".join(lines)
    assert all(text in shown for text in ("\nhttp://127.0.0.1:", "Prefix cache", "\nerror ")), shown
    assert "\nplugin" not in shown


def test_the_first_page_has_totals_and_no_rates() -> None:
    first = Snapshot(1.0, Counter({"500": 2}), Counter(forward=3))
    traffic = rates_between(first, first)
    assert (traffic.per_second["forward"], traffic.from_cache) == (None, None)
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        console.print(live_page(traffic, [], [], 80))
    page = capture.get()
    assert re.search(r"^forward +- +- +3$", page, re.M), page
    assert re.search(r"^Failed +since the start 2 with status 500", page, re.M), page


def test_a_live_page_that_fits_is_shown_as_it_is() -> None:
    console = Console(file=io.StringIO(), width=80, height=3)
    assert fit_screen("a\nb\nc", console) == "a\nb\nc"


def test_top_counts_the_errors_of_the_upstream(tmp_path: Path) -> None:
    async def fail(request: Request) -> Response:
        status = 429 if b"busy" in await request.body() else 500
        return JSONResponse({"error": {"message": "no"}}, status)

    with run_upstream(fail) as upstream, run_front(tmp_path, upstream) as (url, _):
        for question in ("a", "b", "c", "busy"):
            ask(url, question)
        ask(url, "d", headers={"cache-control": "only-if-cached"})
        traffic = rates_between(Snapshot(0.0), take_snapshot(ProxyClient(url)))
        assert (traffic.error_rate, traffic.errors) == (0.6, {"500": 3})
        page = kvproxy("top", "--once", "--interval", 0.1, url=url).stdout
        (shown,) = result("top", "--interval", 0.1, url=url)["upstreams"]
    assert (shown["url"], shown["sent"], shown["errors"]) == (upstream, 4, 3)
    assert re.search(rf"^url\tstate\trunning\tsent\terrors\tmodels\n{upstream}\t\w+\t0\t4\t3\t$", page, re.M), page
    assert re.search(
        r"^Failed\t.*since the start 3 with status 500 \(without an upstream's statuses below 500: ", page, re.M
    ), page


def test_top_and_doctor_name_a_store_and_a_journal_that_fail(tmp_path: Path) -> None:
    with run_plain_upstream() as upstream, run_front(tmp_path, upstream) as (url, services):

        def doctor() -> list[str]:
            done = kvproxy("doctor", "--data", tmp_path, "--upstream", upstream, url=url)
            (line,) = (line for line in done.stdout.splitlines() if " proxy " in line)
            return [str(done.returncode), line]

        ask(url, "a")
        page = kvproxy("top", "--once", "--interval", 0.1, url=url).stdout
        assert not re.search("^(Store|Journal)\t", page, re.M)
        assert doctor()[1].startswith("ok ")
        services.journal.flush()
        (tmp_path / "journal.db").rename(tmp_path / "elsewhere.db")
        ask(url, "b")
        until(lambda: services.journal.failure)
        code, line = doctor()
        assert code == "1"
        assert re.match(r"FAIL .*; the journal .*journal\.db fails: records cannot be written: it was deleted", line)
        services.cache.store.database.health.failed("write", CacheStoreError("the store is full"), 4)
        code, line = doctor()
        assert code == "1"
        assert re.match(r"FAIL .*; the store is full; the journal .* fails", line)
        values = result("top", "--interval", 0.1, url=url)
        assert (values["store_up"], values["journal_up"], values["lost_records"]) == (False, False, 1)
        page = kvproxy("top", "--once", "--interval", 0.1, url=url).stdout
        assert "\nStore\tfails: " in page
        assert "\nJournal\tfails: requests cannot be recorded or listed, 1 record lost" in page


def test_top_sums_the_requests_of_several_proxies(tmp_path: Path) -> None:
    with (
        run_plain_upstream() as upstream,
        run_front(tmp_path / "a", upstream) as (one, _),
        run_front(tmp_path / "b", upstream) as (other, _),
    ):
        for url, questions in ((one, "aab"), (other, "aabbb")):
            for question in questions:
                ask(url, question)
        proxies = result("top", "--also", other, "--interval", 0.1, url=one)
        assert (proxies["requests"]["exact"], proxies["requests"]["forward"]) == (4, 4)
        assert proxies["entries"] == 2
        ((url, sent),) = [(each["url"], each["sent"]) for each in proxies["upstreams"]]
        assert (url, sent) == (upstream, 4)
        page = kvproxy("top", "--once", "--also", other, "--interval", 0.1, url=one).stdout
        assert "\nProxies\t2; what they learned, and their prefix caches, are those of the first one" in page


class Terminal:
    """`kvproxy top` at an emulated terminal of 200 columns and 50 lines."""

    def __init__(self, url: str) -> None:
        self._screen = pyte.Screen(200, 50)
        self._stream = pyte.ByteStream(self._screen)
        self.sent = bytearray()
        self._end, other = pty.openpty()
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        env = variables(url, {"TERM": "xterm-256color"})
        del env["COLUMNS"]
        options: Any = {"stdin": other, "stdout": other, "stderr": other, "env": env, "start_new_session": True}
        control = partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0)
        self.process = subprocess.Popen(command("top", "--interval", "0.2"), cwd=ROOT, preexec_fn=control, **options)
        os.close(other)

    def shows(self, *texts: str) -> None:
        """Wait until the screen shows all texts; line breaks count as blanks."""
        self.until(lambda screen: all(text in screen or text in " ".join(screen.split()) for text in texts))

    def until(self, holds: Callable[[str], bool]) -> None:
        """Wait until the screen satisfies a predicate."""
        end = time.monotonic() + 300
        while not holds(text := "\n".join(line.rstrip() for line in self._screen.display)):
            assert time.monotonic() < end, f"waited for {holds!r}:\n{text}"
            self._read(0.1)

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)

    def _read(self, seconds: float) -> None:
        # Linux reports the end of a terminal as an error.
        with contextlib.suppress(OSError):
            while select.select([self._end], [], [], seconds)[0]:
                part = os.read(self._end, 65_536)
                self.sent += part
                self._stream.feed(part)
                seconds = 0.0


def test_the_live_page_escapes_control_characters_survives_a_restart_and_ends_with_ctrl_c_or_q(tmp_path: Path) -> None:
    evil, port = "evil \x1b]0;renamed\x07\x1b[31mred\x9b5A question", free_port()
    with run_plain_upstream() as upstream, contextlib.ExitStack() as opened:
        settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False})
        with run_proxy(settings, port) as (url, _):
            assert ask(url, evil).is_success
            screen = opened.enter_context(contextlib.closing(Terminal(url)))
            screen.shows("First byte, ms")
            screen.shows(r"evil \x1b]0;renamed\x07\x1b[31mred\x9b5A question", upstream, "Prefix cache")
        screen.shows("no proxy answers")
        with run_proxy(settings, port) as (url, _):
            ask(url, "After?")
            screen.until(lambda text: re.search(r"^forward .* 1\b", text, re.MULTILINE) is not None)
            other = opened.enter_context(contextlib.closing(Terminal(url)))
            other.shows("First byte, ms")
            for terminal, end in ((screen, "\x03"), (other, "q")):
                terminal.press(end)
                assert terminal.process.wait(300) == 0
    assert b"\x1b]0;renamed" not in screen.sent
    assert b"\x1b[31m" not in screen.sent
    assert b"\xc2\x9b" not in screen.sent
    assert not COLOURED.search(screen.sent), "NO_COLOR is set"


def test_ctrl_c_ends_the_live_page_and_interrupts_other_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    for name in ("_print_update", "_show_live"):
        monkeypatch.setattr(f"kvproxy.commands.top.{name}", interrupt)
    assert [kvproxy("top", columns=columns).returncode for columns in (80, None)] == [0, 130]
