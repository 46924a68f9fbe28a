"""Watching a proxy at work."""

import json
import threading

from tests.commands.run import ask, kvproxy
from tests.commands.test_commands import Demo


def test_one_look_as_json(demo: Demo) -> None:
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


def test_one_look_as_a_table_where_nobody_watches(demo: Demo) -> None:
    done = kvproxy("top", "--interval", 0.1, url=demo[0])
    assert done.returncode == 0, done.stderr
    assert "first byte" in done.stdout
    assert "pool" in done.stdout


def test_no_proxy_is_one_line(demo: Demo) -> None:
    done = kvproxy("top")
    assert done.returncode == 4
    assert "no proxy answers" in done.stderr
