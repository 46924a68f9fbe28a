"""Runs the commands of the introductory pages in front of a server."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproxy.settings import load_settings
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy
from tests.tour.shell import kvproxy_function
from tests.tour.test_tour import BLOCK, ROOT

PAGES = ("quickstart", "troubleshooting", "upgrading")
MARK = "----- end of command %s -----"


def steps(page: str) -> list[tuple[str, str]]:
    """Return the commands of a page with their shown output."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    parts = [part for block in BLOCK.findall(text) for part in block.split("$ ", 1)[1].split("\n$ ")]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """URLs of a proxy and of its upstream, and the data folder."""
    data: Path = tmp_path_factory.mktemp("quickstart") / "data"
    with run_plain_upstream() as upstream, run_proxy(load_settings(data=data, upstream=upstream)) as (url, _):
        yield url, upstream, data


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_succeed_with_the_shown_output(proxy: tuple[str, str, Path], page: str) -> None:
    url, upstream, data = proxy
    with kvproxy_function(url, KVPROXY_DATA=str(data)) as function:
        lines = [function, "set -o pipefail"]
        for command, _ in steps(page):
            if command.startswith("kvproxy log"):
                # On a busy machine a record may come long after its answer.
                lines += ["for _ in {1..60}; do [ $(kvproxy log --limit 2 | wc -l) -gt 2 ] && break; sleep 0.2; done"]
            lines += [command.replace("http://127.0.0.1:8484", url).replace("http://127.0.0.1:8000", upstream)]
            lines += [f"echo {MARK % '$?'}"]
        text = "\n".join(lines)
        ran = subprocess.run(
            ["bash"], input=text, capture_output=True, text=True, cwd=data.parent, env=os.environ, timeout=240
        )
    parts = re.split(MARK % r"(\d+)", ran.stdout)
    assert len(parts) // 2 == len(steps(page)), ran.stderr
    for (command, claimed), printed, code in zip(steps(page), parts[::2], parts[1::2], strict=False):
        assert code == "0", f"{command}: {printed}{ran.stderr}"
        if claimed.strip():
            assert printed.strip() == claimed.strip(), command
