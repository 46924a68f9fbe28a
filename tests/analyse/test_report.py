"""Reports name their command, file, and period, and their axes start at zero."""

import re
from pathlib import Path

import pytest

from kvproxy import __version__
from kvproxy.analyse.charts import Chart, ChartLine, save
from kvproxy.analyse.report import describe_period
from tests.analyse import logs
from tests.commands.run import kvproxy

DATA = Path(__file__).parent / "simulate/data"


def test_a_report_of_an_estimate(tmp_path: Path) -> None:
    lines = [each | {"time": 1_790_000_000 + 60 * at} for at, each in enumerate(logs.agents(1, 2) * 2)]
    log, report = logs.write(tmp_path / "log.jsonl", lines), tmp_path / "estimate.html"
    done = kvproxy("estimate", log, "--data", tmp_path, "--price", "2.5,10,1.25", "--report", report, "--block-size", 8)
    assert done.returncode == 0
    text = re.sub(r"<[^>]*>", "\n", report.read_text())
    assert f"kvproxy estimate {log} --data {tmp_path} --price 2.5,10,1.25 --report {report} --block-size 8" in text
    minutes = len(lines) - 1
    for expected in (
        f"kvproxy {__version__}",
        str(log),
        f"read as requests: {len(lines)} rows",
        f"2026-09-21 14:13 to 2026-09-21 14:{13 + minutes} UTC ({minutes}m)",
        "USD",
        "10,000 prompt tokens per second",
    ):
        assert expected in text
    # The table and the report have the same cells.
    (row,) = (line.split("\t") for line in done.stdout.splitlines() if line.startswith("Exact hits"))
    cells = [row[0], row[1], f"{100 * float(row[2]):.1f}%", *row[3:5], f"{float(row[5]):.1f}", f"{float(row[6]):.4f}"]
    assert "\n\n".join(cells) in text


def test_a_report_of_a_simulation(tmp_path: Path) -> None:
    report = tmp_path / "capacity.html"
    kvproxy("simulate", DATA / "mooncake-300.jsonl", "--policies", "lru", "--report", report)
    text = re.sub(r"<[^>]*>", "\n", report.read_text())
    for expected in ("kvproxy simulate", __version__, "102s", "300", "4,269,971", "no prices were used", "second half"):
        assert expected in text


def test_a_report_of_a_simulation_has_only_assumptions_that_apply(tmp_path: Path) -> None:
    report = tmp_path / "capacity.html"
    kvproxy("simulate", DATA / "mooncake-300.jsonl", "--policies", "lru", "--blocks", "500", "--report", report)
    assert not re.search(r"samples|TTFT", report.read_text())
    options = ("--policies", "lru", "--blocks", "500", "--bytes-per-token", 1_024, "--tier", "host=1")
    kvproxy("simulate", DATA / "mooncake-300.jsonl", *options, "--report", report, "--force")
    assert "in addition to that of lru" in report.read_text()


def test_a_report_of_sessions_is_refused_and_a_wrong_name_too(tmp_path: Path) -> None:
    log = logs.write(tmp_path / "log.jsonl", logs.agents(1, 1))
    assert "must end in" in kvproxy("estimate", log, "--report", tmp_path / "report.txt").stderr


@pytest.mark.parametrize(
    ("period", "text"),
    [(None, "unknown: the file has no times"), ((0.0, 3600.0), "1h"), ((1.79e9, 1.79e9 + 90), "2026-09-21 14:13 to")],
)
def test_periods(period: tuple[float, float] | None, text: str) -> None:
    assert describe_period(period).startswith(text)


@pytest.mark.parametrize("ys", [[1.37, 1.36, 1.31], [0.0, 0.0, 0.0]])
def test_axes_start_at_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ys: list[float]) -> None:
    import matplotlib.figure

    figures: list[matplotlib.figure.Figure] = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, _: figures.append(figure))
    save([Chart("tokens", "seconds", [ChartLine("lru", [200_000, 1_000_000, 5_000_000], ys)], log_x=True)], tmp_path)
    (axes,) = figures[0].axes
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] > max(ys)
    labels = [axes.xaxis.get_major_formatter()(value) for value in (2e5, 3e5, 1e6, 5e6)]  # type: ignore[arg-type]
    assert labels == ["200k", "", "1M", "5M"]
