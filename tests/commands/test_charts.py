"""Charts at a terminal, and as files."""

import re
from pathlib import Path

import pytest

from kvproxy.analyse.charts import Chart, ChartLine, draw
from kvproxy.commands.journal.savings import _savings_charts
from kvproxy.journal.saving import Saving
from kvproxy.journal.savings import SavingsReport
from kvproxy.settings import load_settings
from tests.commands.run import ask, kvproxy
from tests.plain_upstream import run_plain_upstream
from tests.servers import run_proxy

LINES = [
    ChartLine("lru", [100, 1_000, 10_000], [0.1, 0.5, 0.8]),
    ChartLine("arc", [100, 1_000, 10_000], [0.2, 0.6, 0.8]),
]
CHARTS = [
    Chart("tokens in the pool", "hit rate", LINES, levels=[("unlimited pool", 0.9)], log_x=True, is_share=True),
    Chart("requests by layer", "", bars=[("exact hits", 12.0), ("engine", 30.0)]),
]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_drawing_fits_the_terminal_and_names_everything(width: int) -> None:
    drawn = draw(CHARTS, width, with_colours=False)
    assert all(len(line) <= width for line in drawn.splitlines())
    for text in "lru, arc, unlimited pool, hit rate in %, tokens in the pool, exact hits, requests by layer".split(
        ", "
    ):
        assert text in drawn
    assert "\x1b" not in drawn
    assert "\x1b[38;2;0;114;178m" in draw(CHARTS, width)


def test_lines_without_colours_have_different_characters() -> None:
    stacked = Chart("", "requests", [ChartLine(name, [0, 60], [2, 3]) for name in ("exact", "forward")], time_step=60)
    for chart in (stacked, CHARTS[0]):
        drawn = draw([chart], 80, with_colours=False).splitlines()
        marks = {
            line.name: next(re.search(rf"(\S)\1 {line.name}", text) for text in drawn if f" {line.name}" in text)
            for line in chart.lines
        }
        assert len({mark[1] for mark in marks.values() if mark is not None}) == len(chart.lines)


def test_an_empty_chart_is_drawn() -> None:
    assert "no values" in draw([Chart("requests", "hit rate", [ChartLine("lru", [], [])])], 80, with_colours=False)


def test_seconds_that_are_not_known_yet_have_no_bar() -> None:
    rows = [Saving("prefix", 2, reused_tokens=90, unmeasured_tokens=90), Saving("exact", 1, 1, 40, 5, seconds=0.5)]
    for row in rows:
        row.remove_unknown()
    tokens, seconds = _savings_charts(SavingsReport(rows, None, None, "USD"), "layer")
    assert [name for name, _ in tokens.bars] == ["prefix", "exact"]
    assert seconds.bars == [("exact", 0.5)]
    lost = Chart("seconds", "", bars=[("exact", -0.5)])
    assert draw([lost], 80, with_colours=False).splitlines()[-1].split() == ["exact", "-0.5"]
    assert len(_savings_charts(SavingsReport(rows[:1], None, None, "USD"), "layer")) == 1


def test_savings_and_the_log_are_drawn_and_saved(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "kvproxy.toml").write_text('[journal.prices."*"]\ninput = 2.5\noutput = 10\n')
    with run_plain_upstream() as upstream:
        settings = load_settings(data=data, upstream=upstream, cache={"semantic": False})
        with run_proxy(settings) as (url, services):
            for _ in range(3):
                ask(url, "What is a block?")
            services.journal.latest(1)
            shown = kvproxy("savings", url=url, columns=80).stdout
            assert "saved tokens by layer" in shown
            assert "saved USD by layer" in shown
            heads = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()[0].split("  ")
            assert {"Response tokens", "Saved USD"} <= {head.strip() for head in heads}
            assert "saved tokens" not in kvproxy("savings", url=url).stdout
            drawn = kvproxy("log", "--plot", "-", url=url).stdout
            assert all(text in drawn for text in ("requests by layer in each", "exact", "forward"))
            hits = kvproxy("log", "--plot", "-", "--reason", "hit", url=url).stdout
            assert "forward" not in hits
            unknown = kvproxy("log", "--plot", "-", "--model", "nope", url=url).stderr
            assert unknown.startswith("no request has the model 'nope': there are ")
            assert kvproxy("log", "--plot", "-", "--json", url=url).returncode == 2
            for name in ("savings", "log"):
                done = kvproxy(name, "--plot", tmp_path / f"{name}.svg", url=url)
                assert done.returncode == 0, done.stderr
                # The colour of exact hits.
                assert "#0072b2" in (tmp_path / f"{name}.svg").read_text()
