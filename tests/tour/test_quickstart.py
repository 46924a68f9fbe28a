"""Runs the commands of the introductory pages in front of a server."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproxy.settings import load_settings
from tests.commands.run import kvproxy, variables
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy
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


def run(page: str, url: str, upstream: str, data: Path) -> Iterator[tuple[str, str, str]]:
    """A page's commands with what they should print and what they printed.

    They run in one shell; where each is a call of kvproxy alone, none is needed, nor a process for each.
    """
    shell, lines = [], ["set -o pipefail"]
    alone = all(re.fullmatch(r"kvproxy [^|>&$;]+(\"[^\"]*\")?", command) for command, _ in steps(page))
    for command, claimed in steps(page):
        if alone:
            done = kvproxy(*shlex.split(command)[1:], url=url, KVPROXY_DATA=str(data))
            assert done.returncode == 0, f"{command}: {done.stderr}"
            yield command, claimed, done.stdout
            continue
        shell.append((command, claimed))
        if command.startswith("kvproxy log"):
            # On a busy machine a record may come long after its answer.
            lines += ["for _ in {1..60}; do [ $(kvproxy log --limit 2 | wc -l) -gt 2 ] && break; sleep 0.5; done"]
        lines += [command.replace("http://127.0.0.1:8484", url).replace("http://127.0.0.1:8000", upstream)]
        lines += [f"echo {MARK % '$?'}"]
    if alone:
        return
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = variables(url, {"KVPROXY_DATA": str(data), "PATH": path})
    text = "\n".join(lines)
    ran = subprocess.run(["bash"], input=text, capture_output=True, text=True, cwd=data.parent, env=env, timeout=240)
    parts = re.split(MARK % r"(\d+)", ran.stdout)
    assert len(parts) // 2 == len(shell), ran.stderr
    for (command, claimed), printed, code in zip(shell, parts[::2], parts[1::2], strict=False):
        assert code == "0", f"{command}: {printed}{ran.stderr}"
        yield command, claimed, printed


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_succeed_with_the_shown_output(proxy: tuple[str, str, Path], page: str) -> None:
    ran = list(run(page, *proxy))
    assert ran
    for command, claimed, printed in ran:
        if claimed.strip():
            assert printed.strip() == claimed.strip(), command
