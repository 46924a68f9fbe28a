"""Charts at a terminal, and as files."""

from pathlib import Path

import pytest

from kvproxy.charts import Chart, ChartLine, draw, save
from tests.commands.run import command, variables
from tests.commands.terminal import terminal

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
    drawn = draw(CHARTS, width, colours=False)
    assert all(len(line) <= width for line in drawn.splitlines())
    for text in (
        "lru",
        "arc",
        "unlimited pool",
        "hit rate in %",
        "tokens in the pool",
        "exact hits",
        "requests by layer",
    ):
        assert text in drawn
    assert "\x1b" not in drawn
    assert "\x1b[38;2;0;114;178m" in draw(CHARTS, width)


def test_an_empty_chart_is_drawn() -> None:
    assert "no values" in draw([Chart("requests", "hit rate", [ChartLine("lru", [], [])])], 80, colours=False)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_charts_are_saved(tmp_path: Path, suffix: str) -> None:
    save(CHARTS, tmp_path / f"charts.{suffix}")
    assert (tmp_path / f"charts.{suffix}").stat().st_size > 5_000


def test_a_simulation_draws_at_a_terminal_only(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [
        f'{{"timestamp": {n}, "input_length": 1024, "output_length": 1, "hash_ids": [{n % 3}, {n % 7 + 3}]}}'
        for n in range(50)
    ]
    trace.write_text("\n".join(lines) + "\n")
    with terminal(command("simulate", str(trace)), (80, 60), variables("", {"TERM": "xterm-256color"})) as screen:
        shown = screen.shows("tokens in the pool", "unlimited pool")
    assert all(len(line) <= 80 for line in shown.splitlines())
