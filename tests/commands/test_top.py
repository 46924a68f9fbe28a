"""kvproxy top."""

import contextlib
import json
import os
import re
import signal
import sys
import threading
from pathlib import Path

from tests.commands.run import ask, command, kvproxy, variables
from tests.commands.terminal import terminal, top
from tests.commands.test_commands import Demo
from tests.faults.proxies import ask as send
from tests.faults.proxies import proxy_process
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
from tests.processes import serve

COLOURED = re.compile(rb"\x1b\[(\d+;)*([34][0-8]|9[0-7]|10[0-7])(;\d+)*m")


def test_top_prints_json_lines(demo: Demo) -> None:
    url = demo[0]
    ask(url, "What is a token?", "For the test of top.")

    done_with = threading.Event()

    def traffic() -> None:
        while not done_with.is_set():
            ask(url, "What is a token?", "For the test of top.")

    thread = threading.Thread(target=traffic)
    thread.start()
    done = kvproxy("top", "--json", "--interval", 0.3, "--count", 2, url=url)
    done_with.set()
    thread.join()
    assert done.returncode == 0, done.stderr
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(looks) == 2
    assert max(look["per_second"]["exact"] for look in looks) > 0
    assert looks[-1]["from_cache"] == 1.0
    assert looks[-1]["first_byte_ms"]["exact"] > 0
    assert looks[-1]["first_byte_ms"]["error"] is None
    assert looks[-1]["requests"]["forward"] >= 1
    assert looks[-1]["blocks"]["num_blocks"] == 512
    assert looks[-1]["entries"] >= 1


def test_top_prints_a_table_in_a_pipe(demo: Demo) -> None:
    done = kvproxy("top", "--interval", 0.1, url=demo[0])
    assert done.returncode == 0, done.stderr
    assert "First byte" in done.stdout
    assert "Pool" in done.stdout


def test_no_proxy_is_one_line(demo: Demo) -> None:
    done = kvproxy("top")
    assert done.returncode == 4
    assert "no proxy answers" in done.stderr


def test_the_live_page_fits_80_columns_and_ends_with_ctrl_c(demo: Demo) -> None:
    ask(demo[0], "Is anything cut off?").raise_for_status()
    with top(demo[0], 80, lines=50) as screen:
        text = screen.shows("First byte, ms", "Total", "stored", "prompt tokens)", "Pool  ", "Evictions", "Question")
        assert re.search(r"\d\d:\d\d:\d\d  forward .* Is anything cut off\?", text)
        screen.press("\x03")
        assert screen.ended() == 0


def test_the_live_page_escapes_control_characters(tmp_path: Path) -> None:
    evil = "evil \x1b]0;renamed\x07\x1b[31mred\x9b5A question"
    with (
        run_plain_upstream() as upstream,
        proxy_process(upstream, tmp_path / "data", tmp_path / "log", "--no-semantic") as proxy,
    ):
        assert send(proxy.url, evil).status_code == 200
        with top(proxy.url, 200, lines=50) as screen:
            screen.shows(r"evil \x1b]0;renamed\x07\x1b[31mred\x9b5A question", upstream, "Prefix cache")
    assert b"\x1b]0;renamed" not in screen.sent
    assert b"\x1b[31m" not in screen.sent
    assert b"\xc2\x9b" not in screen.sent
    assert not COLOURED.search(screen.sent), "NO_COLOR is set"


def test_the_live_page_survives_a_restart_of_the_proxy(tmp_path: Path) -> None:
    port = free_port()
    with run_plain_upstream() as upstream, contextlib.ExitStack() as opened:
        flags = ["--port", str(port), "--upstream", upstream, "--no-semantic", "--data", str(tmp_path / "data")]
        start = [sys.executable, "-m", "kvproxy.commands", "serve", *flags]
        with serve(start, port, tmp_path / "log", env=os.environ) as first:
            send(first.url, "Before?")
            screen = opened.enter_context(top(first.url, 80))
            first.process.send_signal(signal.SIGKILL)
            screen.until("no proxy answers")
        with serve(start, port, tmp_path / "log", env=os.environ) as second:
            send(second.url, "After?")
            screen.until(lambda text: re.search(r"^forward .* 1\b", text, re.MULTILINE) is not None)


def test_no_proxy_opens_no_live_page() -> None:
    with terminal(command("top"), (80, 24), variables("http://127.0.0.1:9", {"TERM": "xterm"})) as screen:
        assert screen.ended() == 4
        assert "no proxy answers" in "\n".join(screen.lines())
