"""Runs the questions of the README's first screen in front of the server of `kvproxy serve --demo`."""

from pathlib import Path

from kvproxy.demo.upstream import run_demo_upstream
from kvproxy.settings import load_settings
from tests.commands.run import ROOT
from tests.servers import run_proxy
from tests.tour.shell import WIDTH, run_commands, steps
from tests.tour.test_tour import normal

COMMAND = "uvx --from . kvproxy "


def test_the_output_of_the_first_screen_is_current(tmp_path: Path) -> None:
    shown = [step for step in steps((ROOT / "README.md").read_text()) if step.command.startswith(COMMAND)]
    assert len(shown) == 3
    commands = [step.command.replace(COMMAND, "kvproxy ") for step in shown]
    with run_demo_upstream() as upstream:
        settings = load_settings(
            data=tmp_path / "data",
            upstreams=[{"url": upstream}],
            routing={"name": "demo"},
            cache={"lookup_timeout": 60},
        )
        with run_proxy(settings) as (url, _):
            ran, errors = run_commands(commands, url, tmp_path, WIDTH)
    for (step, code), claimed in zip(ran, shown, strict=True):
        assert code == 0, errors
        assert normal(step.output) == normal(claimed.output), step.command
