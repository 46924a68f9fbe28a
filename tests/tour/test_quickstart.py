"""Runs the commands of the introductory pages in front of a server."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproxy.settings import load_settings
from tests.commands.run import ROOT, kvproxy
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy
from tests.tour.shell import Step, page, run_commands, steps

# On a busy machine a record may come long after its answer.
_WAIT = "for _ in {1..60}; do [ $(kvproxy log --limit 2 | wc -l) -gt 2 ] && break; sleep 0.2; done; "


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """URLs of a proxy and of its upstream, and the data folder."""
    data: Path = tmp_path_factory.mktemp("quickstart") / "data"
    with run_plain_upstream() as upstream, run_proxy(load_settings(data=data, upstream=upstream)) as (url, _):
        yield url, upstream, data


@pytest.mark.parametrize("name", ["quickstart", "troubleshooting", "upgrading"])
def test_commands_of_a_page_succeed_with_the_shown_output(proxy: tuple[str, str, Path], name: str) -> None:
    url, upstream, data = proxy
    shown = steps(page(name))
    commands = [_WAIT * step.command.startswith("kvproxy log") + step.command for step in shown]
    commands = [
        line.replace("http://127.0.0.1:8484", url).replace("http://127.0.0.1:8000", upstream) for line in commands
    ]
    ran, errors = run_commands(commands, url, data.parent, KVPROXY_DATA=str(data))
    for (step, code), claimed in zip(ran, shown, strict=True):
        assert code == 0, f"{step.command}: {step.output}{errors}"
        if claimed.output.strip():
            assert step.output.strip() == claimed.output.strip(), step.command


@pytest.mark.parametrize("step", steps(page("logs")), ids=lambda step: step.command)
def test_the_shown_output_of_analyses_is_current(step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert kvproxy(*shlex.split(step.command)[1:], "--data", tmp_path).stdout == step.output
